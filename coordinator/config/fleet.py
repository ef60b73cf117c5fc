"""Configuration of the workers that the coordinator starts by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import Field, model_validator

from capacity.providers.config import Pool
from rollcast.runtime.config import ConfigModel


class ProvidersConfig(ConfigModel):
    """Workers that are started and stopped at providers, and what they may cost (docs/providers.md)."""

    want: Literal["plan", "all"] = "plan"
    """Which of them should run: those that the capacity model chooses (section [capacity]), or all that are offered."""
    usd_per_hour_max: float | None = Field(None, ge=0.0)
    """What all of them may cost in an hour, the most that they can send included; none: no limit."""
    usd_max: float | None = Field(None, ge=0.0)
    """What they may cost in all during the run; none: no limit. They are stopped in time."""
    start_timeout_s: float = Field(900.0, gt=0.0)
    """From a start until its peer joins; then it is stopped and tried again later."""
    stop_timeout_s: float = Field(120.0, gt=0.0)
    """For one call that stops a worker; it is repeated until it succeeds. At the run's end, for all of them."""
    call_timeout_s: float = Field(60.0, gt=0.0)
    """For one call that asks what is offered, or what runs."""
    drain_timeout_s: float = Field(15.0, ge=0.0)
    """For a peer to finish, upload and leave before it is stopped."""
    list_every_s: float = Field(60.0, gt=0.0)
    """Between two looks at what runs."""
    mark_every_s: float = Field(30.0, gt=0.0)
    """Between two records of what was spent."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of every peer that is started (`rollcast config show --role peer`)."""
    pools: list[Pool] = Field(default_factory=list, max_length=64)
    """Where workers come from: local processes, ssh hosts, SkyPilot."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> ProvidersConfig:
        for what, names in (
            ("name", [pool.name for pool in self.pools]),
            ("worker", [worker_id for pool in self.pools for worker_id in pool.worker_ids()]),
        ):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ValueError(f"pools: more than one has the {what} {twice[0]}; give each its own")
        return self
