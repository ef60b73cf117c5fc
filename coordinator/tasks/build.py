"""Build a task from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from coordinator.config.environments import GymTask, VerifiersTask
from coordinator.config.tasks import (
    EvaluationSetConfig,
    HuggingFaceTask,
    JsonlTask,
    MixturePart,
    MixtureTask,
    ParquetTask,
    PythonTask,
    ReasoningGymTask,
    SingleTaskConfig,
    TaskConfig,
    single_tasks,
)
from coordinator.environments.process import EnvironmentSpec
from coordinator.tasks.checks.task import TaskAdapter
from coordinator.tasks.environment import EnvironmentTask, environment_name, environment_spec
from coordinator.tasks.mixture import Stage
from coordinator.tasks.multi_task import Mixed, Part
from coordinator.tasks.reasoning_gym import TEACHERS, ReasoningGym
from coordinator.tasks.rows import Rows
from rollcast.runtime.errors import TaskError

TRAINING = "train"  # the training task's name beside evaluation sets
EVALUATION = "eval."  # prefix of an evaluation set's name as a part

_CONFIGS: TypeAdapter[TaskConfig] = TypeAdapter(TaskConfig)


#: What makes the task of each kind: a new kind is a configuration, a TaskAdapter and a line here.
TASKS: Mapping[type, Callable[[Any, int], TaskAdapter]] = {
    ReasoningGymTask: lambda config, seed: ReasoningGym(config.name, config.parameters, seed),
    JsonlTask: lambda config, _seed: Rows(config),
    ParquetTask: lambda config, _seed: Rows(config),
    HuggingFaceTask: lambda config, _seed: Rows(config),
    PythonTask: lambda config, _seed: Rows(config),
    GymTask: EnvironmentTask,
    VerifiersTask: EnvironmentTask,
}


def build_task(config: TaskConfig, seed: int) -> TaskAdapter | Mixed:
    """Build the task that the configuration names.

    Raises:
        TaskError: the generator, a parameter, or the file is wrong.
        MissingExtra: its library is not installed.
    """
    if isinstance(config, MixtureTask):
        return Mixed([Part(part.name, build_single(part.task, part_seed(seed, part.name))) for part in config.parts])
    return build_single(config, seed)


def build_single(config: SingleTaskConfig, seed: int) -> TaskAdapter:
    """Build a task that is not a mixture; raises as build_task."""
    return TASKS[type(config)](config, seed)


def part_seed(seed: int, name: str) -> int:
    """Return a part's seed: parts with the same generator get different problems. A single task has the run's seed."""
    if not name or name == TRAINING:
        return seed
    return int.from_bytes(blake3(f"rollcast/part-seed/{seed}/{name}".encode()).digest()[:8], "little") >> 1


def environments_of(config: TaskConfig, sets: Mapping[str, EvaluationSetConfig]) -> dict[str, EnvironmentSpec]:
    """Return how workers run each environment of a task and its evaluation sets, by environment_name.

    Raises:
        TaskError: see environment_spec.
    """
    tasks = [*single_tasks(config), *(one.task for one in sets.values())]
    found = [task for task in tasks if isinstance(task, (GymTask, VerifiersTask))]
    return {environment_name(task): environment_spec(task) for task in found}


def has_flawed_teacher(config: TaskConfig) -> bool:
    """Return whether some part of the task has a teacher that errs, so that its flawed demonstrations are others."""
    return any(isinstance(task, ReasoningGymTask) and task.name in TEACHERS for task in single_tasks(config))


def stages_of(config: TaskConfig) -> tuple[Stage, ...]:
    """Return the weights of a mixture's parts by stage, from step 0 on; empty for a single task."""
    if not isinstance(config, MixtureTask):
        return ()
    first = Stage(0, {part.name: part.weight for part in config.parts})
    return (first, *(Stage(stage.from_step, stage.weights) for stage in config.stages))


def with_evaluation(config: TaskConfig, sets: Mapping[str, EvaluationSetConfig]) -> TaskConfig:
    """Return the training task and the evaluation sets as parts of one mixture, for verifiers, which score both."""
    if not sets:
        return config
    parts = config.parts if isinstance(config, MixtureTask) else [MixturePart(name=TRAINING, task=config)]
    extra = [MixturePart(name=EVALUATION + name, task=one.task, weight=0.0) for name, one in sets.items()]
    return MixtureTask(kind="mixture", parts=[*parts, *extra])


def task_config_to_json(config: TaskConfig) -> str:
    """Encode the configuration for a verifier process."""
    return _CONFIGS.dump_json(config).decode()


def task_config_from_json(text: str) -> TaskConfig:
    """Decode what task_config_to_json wrote.

    Raises:
        TaskError: the text is something else.
    """
    try:
        return _CONFIGS.validate_json(text)
    except ValidationError as error:
        raise TaskError("a verifier process received an invalid task", cause=str(error)) from None
