"""From configuration to a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from coordinator.config.tasks import (
    EvaluationSetConfig,
    HuggingFaceTask,
    JsonlTask,
    MixturePart,
    MixtureTask,
    ParquetTask,
    ReasoningGymTask,
    SingleTaskConfig,
    TaskConfig,
)
from coordinator.tasks.checks.task import TaskAdapter
from coordinator.tasks.mixture import Stage
from coordinator.tasks.multi_task import Mixed, Part
from coordinator.tasks.reasoning_gym import ReasoningGym
from coordinator.tasks.rows import Rows
from rollcast.runtime.errors import TaskError

TRAINING = "train"  # the training task's name beside evaluation sets
EVALUATION = "eval."  # begins the names of evaluation sets, as parts

_CONFIGS: TypeAdapter[TaskConfig] = TypeAdapter(TaskConfig)


def build_task(config: TaskConfig, seed: int) -> TaskAdapter | Mixed:
    """The task that the configuration names.

    Raises:
        TaskError: the generator, a parameter, or the file is wrong.
        MissingExtra: its library is not installed.
    """
    if isinstance(config, MixtureTask):
        return Mixed([Part(part.name, build_single(part.task, part_seed(seed, part.name))) for part in config.parts])
    return build_single(config, seed)


def build_single(config: SingleTaskConfig, seed: int) -> TaskAdapter:
    """As build_task, for what is no mixture."""
    match config:
        case ReasoningGymTask():
            return ReasoningGym(config.name, config.parameters, seed)
        case JsonlTask() | ParquetTask() | HuggingFaceTask():
            return Rows(config)
        case _:
            assert_never(config)


def part_seed(seed: int, name: str) -> int:
    """Of a part: two parts with the same generator have other problems. The only part has the run's seed."""
    if not name or name == TRAINING:
        return seed
    return int.from_bytes(blake3(f"rollcast/part-seed/{seed}/{name}".encode()).digest()[:8], "little") >> 1


def stages_of(config: TaskConfig) -> tuple[Stage, ...]:
    """The weights of a mixture's parts from step 0 on; empty for a single task."""
    if not isinstance(config, MixtureTask):
        return ()
    first = Stage(0, {part.name: part.weight for part in config.parts})
    return (first, *(Stage(stage.from_step, stage.weights) for stage in config.stages))


def with_evaluation(config: TaskConfig, sets: Mapping[str, EvaluationSetConfig]) -> TaskConfig:
    """The training task and the evaluation sets as parts of one, for verifiers, who score problems of both."""
    if not sets:
        return config
    parts = config.parts if isinstance(config, MixtureTask) else [MixturePart(name=TRAINING, task=config)]
    extra = [MixturePart(name=EVALUATION + name, task=one.task, weight=0.0) for name, one in sets.items()]
    return MixtureTask(kind="mixture", parts=[*parts, *extra])


def task_config_to_json(config: TaskConfig) -> str:
    """The configuration as a verifier process takes it."""
    return _CONFIGS.dump_json(config).decode()


def task_config_from_json(text: str) -> TaskConfig:
    """Read what task_config_to_json wrote.

    Raises:
        TaskError: it is something else.
    """
    try:
        return _CONFIGS.validate_json(text)
    except ValidationError as error:
        raise TaskError("a verifier process got a task that it does not understand", cause=str(error)) from None
