"""Configure the workers that the coordinator starts and stops at providers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import Field, model_validator

from capacity.providers.config import Pool
from rollcast.runtime.config import ConfigModel


class ProvidersConfig(ConfigModel):
    """Workers that the coordinator starts and stops at providers, and their budget (docs/providers.md)."""

    want: Literal["plan", "all"] = "plan"
    """plan: run the workers that the capacity model chooses (section [capacity]); all: run every worker on offer."""
    usd_per_hour_max: float | None = Field(None, ge=0.0)
    """Most that all workers may cost per hour, in USD, including the most traffic they can send; none: no limit."""
    usd_max: float | None = Field(None, ge=0.0)
    """Most that all workers may cost during the run, in USD; none: no limit. They are stopped before it is exceeded."""
    start_timeout_s: float = Field(900.0, gt=0.0)
    """Seconds from starting a worker until its peer joins; after that the worker is stopped and started again later."""
    stop_timeout_s: float = Field(120.0, gt=0.0)
    """Seconds for one call that stops a worker (retried until it succeeds), and for stopping all at the run's end."""
    call_timeout_s: float = Field(60.0, gt=0.0)
    """Timeout of one call that lists a provider's offers or running workers, in seconds."""
    drain_timeout_s: float = Field(15.0, ge=0.0)
    """Seconds for a peer to finish, upload and leave before its worker is stopped."""
    list_every_s: float = Field(60.0, gt=0.0)
    """Seconds between two listings of the workers that run."""
    mark_every_s: float = Field(30.0, gt=0.0)
    """Seconds between two records of the money spent so far."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of every started peer; `rollcast config show --role peer` lists the keys."""
    pools: list[Pool] = Field(default_factory=list, max_length=64)
    """Pools that workers come from: local processes, SSH hosts, SkyPilot."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> ProvidersConfig:
        for what, names in (
            ("name", [pool.name for pool in self.pools]),
            ("worker", [worker_id for pool in self.pools for worker_id in pool.worker_ids()]),
        ):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ValueError(f"pools: the {what} {twice[0]} is used more than once; give each pool its own")
        return self
