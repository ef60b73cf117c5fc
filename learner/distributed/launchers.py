"""Find this process's place in the learner where a launcher started it on several hosts.

Slurm, Open MPI and TPU slices say in the environment, or at the metadata server of a TPU VM, how many processes there
are, which one this is, and on which host process 0 is. Settings in `[distributed]` take precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from learner.config import LearnerConfig
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import ConfigError

AnswerT = TypeVar("AnswerT")

_log = structlog.get_logger()


class Launcher(Protocol):
    """What jax knows of one kind of launcher. It reads the environment, or asks the metadata server of a TPU VM."""

    name: str

    def is_env_present(self) -> bool: ...

    def get_coordinator_address(self, timeout_secs: int | None, override_coordinator_port: str | None) -> str: ...

    def get_process_count(self) -> int: ...

    def get_process_id(self) -> int: ...


def placed_by_launcher(config: LearnerConfig, launchers: Sequence[Launcher], port: str | None) -> LearnerConfig:
    """Return the configuration with number and address of the processes, as the launcher has it unless they are set.

    It blocks where it asks a metadata server, or waits until the name of a TPU slice's first host is known.

    Args:
        launchers: the launchers to look for; the first that is present counts.
        port: port of process 0; None: the launcher's choice.

    Raises:
        ConfigError: a launcher's variables cannot be read, or the configuration does not fit several processes.
    """
    settings = config.distributed
    if settings.processes:
        return config
    launcher = next((each for each in launchers if _asked(each, each.is_env_present)), None)
    found: dict[str, Any] = {"processes": 1}
    if launcher is not None and (processes := _asked(launcher, launcher.get_process_count)) > 1:
        found = {
            "processes": processes,
            "process_id": _asked(launcher, launcher.get_process_id),
            "coordinator_address": settings.coordinator_address
            or _asked(launcher, lambda: launcher.get_coordinator_address(int(settings.join_timeout_s), port)),
        }
        _log.info("placed by a launcher", launcher=launcher.name, **found)
    values = config.model_dump() | {"distributed": settings.model_dump() | found}
    return parse_config(values, LearnerConfig, source="the learner's place among several processes")


def _asked(launcher: Launcher, question: Callable[[], AnswerT]) -> AnswerT:
    try:
        return question()
    except Exception as error:  # of parsing variables, or of whatever asks the metadata server
        raise ConfigError(
            f"the launcher {launcher.name} does not say which process of the learner this is",
            cause=f"{type(error).__name__}: {str(error)[:300]}",
            fix="set distributed.processes = 1, or processes, process_id and coordinator_address of [distributed]",
        ) from None
