"""A worker as the planner sees it: what it makes, how its links are, what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capacity.model.preemption import lost_share

Pin = Literal["", "on", "off"]


@dataclass(frozen=True, slots=True)
class Speed:
    """What a worker makes with so many rollouts under way at once.

    Args:
        concurrency: rollouts under way at once.
        rollouts_per_second: mu, while it generates.
        t_gen_p90_s: seconds of one rollout, 90th percentile.
        t_gen_mean_s: the same, mean; 0: not known.
    """

    concurrency: int
    rollouts_per_second: float
    t_gen_p90_s: float
    t_gen_mean_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One column of the programme.

    Args:
        speeds: by concurrency, ascending; the planner takes the fastest one whose p90 fits.
        usd_per_hour: price while it is on; 0 for a donated machine.
        egress_usd_per_gb: price of what it sends; 1 GB = 1e9 bytes.
        upload_bytes_per_second, download_bytes_per_second: of its link, within its owner's caps.
        relays: whether it may pass chunks on.
        preemptions_per_hour: how often it is taken away, on average.
        lost_per_preemption_s: of its work, each time: unfinished rollouts, and until a replacement works.
        region: whose workers are lost together; empty: not known.
        active: whether it is on now.
        pin: what the operator decided for it, whatever is cheapest.
    """

    worker_id: str
    speeds: tuple[Speed, ...]
    usd_per_hour: float
    upload_bytes_per_second: float
    download_bytes_per_second: float
    egress_usd_per_gb: float = 0.0
    relays: bool = True
    preemptions_per_hour: float = 0.0
    lost_per_preemption_s: float = 0.0
    name: str = ""
    hardware: str = ""
    provider: str = ""
    region: str = ""
    active: bool = False
    pin: Pin = ""

    @property
    def preemption_loss(self) -> float:
        """q: share of its work that preemptions cost, at most 1."""
        return lost_share(self.preemptions_per_hour, self.lost_per_preemption_s)

    def fastest_within(self, t_gen_s: float) -> Speed | None:
        """Its fastest speed whose p90 takes at most so long; None if none does."""
        fitting = [speed for speed in self.speeds if speed.t_gen_p90_s <= t_gen_s]
        return max(fitting, key=lambda speed: speed.rollouts_per_second, default=None)
