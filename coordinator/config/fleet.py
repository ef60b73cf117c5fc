"""Configure the workers that the coordinator starts and stops at providers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from capacity.providers.config import ProviderConfigs


class ProvidersConfig(ProviderConfigs):
    """Workers that the coordinator starts and stops at providers, and their budget (docs/providers.md)."""

    pool: Path | None = None
    """Pool of workers, the file of `rollcast capacity plan --pool`: rows whose column `start` is local, ssh or sky are
    on offer. None: no worker is started."""
    demand: Path | None = None
    """The file of `rollcast capacity plan --demand`: its model and lengths give the workers' speeds, which
    want = "plan" needs; none: speeds are not known before they are measured."""
    want: Literal["plan", "apply", "all"] = "plan"
    """plan: run the workers that the capacity model chooses (section [capacity]); apply: those that `rollcast capacity
    apply` asks for; all: run every worker on offer."""
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

    @model_validator(mode="after")
    def _a_plan_needs_speeds(self) -> ProvidersConfig:
        if self.want == "plan" and (self.pool is None) is not (self.demand is None):
            raise ValueError('with want = "plan", pool and demand are needed together')
        return self
