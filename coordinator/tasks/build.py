"""From configuration to a task."""

from __future__ import annotations

from typing import assert_never

from pydantic import TypeAdapter, ValidationError

from coordinator.config import JsonlTask, ReasoningGymTask, TaskConfig
from coordinator.tasks.adapter import TaskAdapter
from coordinator.tasks.gym import ReasoningGym
from coordinator.tasks.jsonl import Jsonl
from rollcast.runtime.errors import TaskError

_CONFIGS: TypeAdapter[TaskConfig] = TypeAdapter(TaskConfig)


def build_task(config: TaskConfig, seed: int) -> TaskAdapter:
    """The task that the configuration names.

    Raises:
        TaskError: the generator, a parameter, or the file is wrong.
        MissingExtra: its library is not installed.
    """
    match config:
        case ReasoningGymTask():
            return ReasoningGym(config.name, config.parameters, seed)
        case JsonlTask():
            return Jsonl(config.path)
        case _:
            assert_never(config)


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
