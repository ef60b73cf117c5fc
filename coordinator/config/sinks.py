"""Which sinks a run has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rollcast.runtime.config import ConfigModel


class WandbConfig(ConfigModel):
    """Weights & Biases. Its key comes from WANDB_API_KEY or `wandb login`, never from here."""

    project: str = Field("rollcast", pattern=r"^[A-Za-z0-9._-]{1,128}$")
    """Project there."""
    entity: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,128}$")
    """User or team; empty: the default of the key."""
    mode: Literal["online", "offline"] = "online"
    """offline: files in the run folder, to be sent by `wandb sync`."""


class MetricsConfig(ConfigModel):
    """Where the figures of learner steps go, beside metrics.jsonl and /metrics, which are always there."""

    sinks: tuple[Literal["tensorboard", "wandb"], ...] = Field((), max_length=2)
    """Further sinks: TensorBoard event files in the run folder, Weights & Biases."""
    wandb: WandbConfig = Field(default_factory=WandbConfig)

    @field_validator("sinks")
    @classmethod
    def _once_each(cls, sinks: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(sinks)) != len(sinks):
            raise ValueError("each sink at most once")
        return sinks
