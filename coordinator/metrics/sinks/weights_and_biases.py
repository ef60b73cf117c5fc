"""Write curves to Weights & Biases, or to files for it without network."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.config.sinks import WandbMode
from coordinator.metrics.sinks.sink import numbers
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command


def require_wandb() -> None:
    """Check that wandb is installed. Raises MissingExtra if it is not."""
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra(
            'metrics.sinks has "wandb", which needs a package that is not installed',
            cause="no package wandb",
            fix=f"{install_command('wandb')}, or take it out of metrics.sinks",
        )


class WandbSink:
    """Writes to one run at Weights & Biases, which a restarted coordinator resumes under the same id.

    Args:
        run_id: the id of the Rollcast run.
        mode: offline writes files that `wandb sync` sends later.

    Raises:
        MissingExtra: see require_wandb.
    """

    name = "wandb"

    def __init__(self, folder: Path, *, run_id: str, run_name: str, project: str, entity: str, mode: WandbMode) -> None:
        require_wandb()
        self._run = begin_wandb(folder, run_id=run_id, run_name=run_name, project=project, entity=entity, mode=mode)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write all metrics of a step in one record. Metrics that name peers are not sent."""
        self._run.log({name: value for name, value in numbers(values) if ":" not in name}, step=step)

    def close(self) -> None:
        self._run.finish()


def begin_wandb(folder: Path, *, run_id: str, run_name: str, project: str, entity: str, mode: WandbMode) -> Any:
    """Begin or resume a run at Weights & Biases, which must be installed; ``folder`` has its files."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    return wandb.init(
        dir=str(folder),
        id=run_id,
        name=run_name,
        project=project,
        entity=entity or None,
        mode=mode,
        resume="allow" if mode == "online" else None,  # with it, wandb 0.31 writes no figures offline
        # Figures and samples only: nothing about this machine, its packages or its code leaves it.
        save_code=False,
        settings=wandb.Settings(
            disable_git=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            console="off",
            silent=True,
        ),
    )
