"""Configure the sinks to which the metrics of learner steps are written."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rollcast.runtime.config import ConfigModel

WandbMode = Literal["online", "offline"]


class WandbConfig(ConfigModel):
    """Weights & Biases. The API key comes from WANDB_API_KEY or `wandb login`, never from this configuration."""

    project: str = Field("rollcast", pattern=r"^[A-Za-z0-9._-]{1,128}$")
    """Project in Weights & Biases."""
    entity: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,128}$")
    """User or team in Weights & Biases; empty: the default of the API key."""
    mode: WandbMode = "online"
    """online: send figures at once; offline: write files to the run folder, for `wandb sync`."""


class MetricsConfig(ConfigModel):
    """Sinks for the metrics of learner steps. metrics.jsonl and /metrics always have them."""

    sinks: tuple[Literal["tensorboard", "wandb"], ...] = Field((), max_length=2)
    """Further sinks: TensorBoard event files in the run folder, Weights & Biases."""
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    """Settings of the sink wandb."""

    @field_validator("sinks")
    @classmethod
    def _once_each(cls, sinks: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(sinks)) != len(sinks):
            raise ValueError("a sink is listed more than once; list each at most once")
        return sinks
