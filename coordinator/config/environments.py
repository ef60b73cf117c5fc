"""Configure environments: tasks whose problems take several turns, and the pool of processes that plays them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rollcast.runtime.config import ConfigModel

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class EnvironmentConfig(ConfigModel):
    """Settings that all environments share."""

    step_timeout_s: float = Field(30.0, gt=0.0, le=3600.0)
    """Longest time for the answer to one turn, in seconds; an environment that takes longer has failed."""
    pass_variables: list[VariableName] = Field(default_factory=list, max_length=64)
    """Environment variables of the coordinator that the environment's processes get besides PATH and the like, for
    example the key of a service."""


class GymTask(EnvironmentConfig):
    """An environment in one Python class with reset and step (docs/tasks.md)."""

    kind: Literal["gym"]
    """Selects this kind of task."""
    path: str = Field(min_length=1)
    """The class: `FILE.py:NAME`, relative to the working directory, or the name of an entry point of the group
    `rollcast.environments`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the class."""


class VerifiersTask(EnvironmentConfig):
    """An environment of the package `verifiers`, release 0.4 (docs/tasks.md)."""

    kind: Literal["verifiers"]
    """Selects this kind of task."""
    env: dict[str, Any] = Field(default_factory=dict)
    """What the package takes as `[env]`: the taskset, the agents with their harness and runtime. Without a harness an
    agent's chat loop runs in the environment's process, and without a runtime on this machine."""
    path: str = ""
    """File that defines the taskset, relative to the working directory; empty: an installed one, env.taskset.id."""
    python: Path | None = None
    """Interpreter of a virtual environment with the package, where its dependencies clash; none: this one."""
    tasks_max: int = Field(10_000, ge=1, le=1_000_000)
    """Most tasks to take of the taskset, which may be endless."""

    @field_validator("path")
    @classmethod
    def _a_python_file(cls, path: str) -> str:
        if path and not path.endswith(".py"):
            raise ValueError("path is a Python file with a taskset; an installed taskset is named by env.taskset.id")
        return path


class EnvironmentPoolConfig(ConfigModel):
    """The processes that play episodes, beside the coordinator, and the limits of episodes.

    The longest episode in tokens, with what its environment says, is `sampling.new_tokens_max`.
    """

    processes: int = Field(2, ge=1, le=256)
    """Processes of each environment."""
    episodes_max: int = Field(4096, ge=1, le=1_000_000)
    """Most episodes that may be open at once: a batch of training may have half of them, evaluations take turns in the
    others."""
    turns_max: int = Field(16, ge=1, le=120)
    """Most turns of the policy in an episode; after the last one it ends as truncated."""
    episode_seconds_max: float = Field(1800.0, gt=0.0, le=1e6)
    """Seconds after an episode's first turn from which on none begins: it ends as truncated."""
    sticky_s: float = Field(2.0, ge=0.0, le=3600.0)
    """Seconds for which a turn waits for the peer that made the one before, which may have it in its cache."""
    answer_s: float = Field(600.0, gt=0.0, le=1e6)
    """Seconds after which an answer that did not come counts as a failure, the time in the queue included."""
    failures_max: int = Field(3, ge=0, le=1000)
    """How often in a row an episode's environment may fail before its group is dropped."""
