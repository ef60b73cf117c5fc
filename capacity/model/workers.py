"""Describe a worker as the planner sees it: speeds, links, prices, and what preemptions cost.

Observed rates on real spot markets: 0.02 to 1.8 preemptions per node and hour, correlated up to 0.59 within a region
and 0.27 across (design notes on capacity).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from capacity.model.units import SECONDS_PER_HOUR

#: Name of a worker that a provider can start. It has no dot, so that a tag can be taken apart, and lower case, so that
#: it can be a cluster's name.
WORKER_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
#: Path of a program or folder on a machine that a provider starts workers on.
PATH = re.compile(r"[A-Za-z0-9_./~+-]+")


def lost_share(preemptions_per_hour: float, lost_work_s: float, restart_s: float = 0.0) -> float:
    """Return q, the share of its time in which a worker generates nothing useful, at most 1.

    Up-times of ``U = 3600 / preemptions_per_hour`` seconds on average alternate with restarts; in each cycle of
    ``U + restart`` the work that was under way and the restart are lost (renewal reward theorem). With the restart
    counted as lost work instead of time without pay the share is a little higher, never lower.

    Args:
        preemptions_per_hour: of up-time.
        lost_work_s: of unfinished rollouts, each time.
        restart_s: until a replacement makes rollouts.

    Raises:
        ValueError: one of them is negative.
    """
    if not preemptions_per_hour >= 0 or not lost_work_s >= 0 or not restart_s >= 0:
        raise ValueError("preemptions and what each costs must not be negative")
    if preemptions_per_hour == 0:
        return 0.0
    up_s = SECONDS_PER_HOUR / preemptions_per_hour
    return min(1.0, (lost_work_s + restart_s) / (up_s + restart_s))


def lost_work_s(*, t_gen_mean_s: float, t_gen_mean_square_s2: float, notice_s: float = 0.0) -> float:
    """Return the seconds of unfinished work that a preemption costs each slot.

    A slot that is interrupted at a random moment has worked ``E[T^2] / 2 E[T]`` seconds on its rollout on average (the
    inspection paradox: long rollouts are the likelier to be hit). With notice, rollouts that end within it are
    uploaded and none is begun; at most the notice is saved.

    Args:
        t_gen_mean_s: mean seconds of a rollout.
        t_gen_mean_square_s2: mean of the square of it.
        notice_s: warning before the preemption.

    Raises:
        ValueError: the mean is not positive.
    """
    if not t_gen_mean_s > 0:
        raise ValueError("t_gen_mean_s must be positive")
    return max(0.0, t_gen_mean_square_s2 / (2.0 * t_gen_mean_s) - notice_s)


Pin = Literal["", "on", "off"]


@dataclass(frozen=True, slots=True)
class Speed:
    """A worker's speed with so many rollouts in flight.

    Args:
        concurrency: rollouts in flight.
        rollouts_per_second: mu, while it generates.
        t_gen_p90_s: seconds of one rollout, 90th percentile.
        t_gen_mean_s: the same, mean; 0: not known.
        t_reread_s: seconds in which the engine reads the prefixes of all rollouts in flight again; 0: not known.
    """

    concurrency: int
    rollouts_per_second: float
    t_gen_p90_s: float
    t_gen_mean_s: float = 0.0
    t_reread_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker: a column of the planner's programme.

    Args:
        speeds: by concurrency, ascending; the planner takes the fastest one whose p90 fits.
        usd_per_hour: price while it is on; 0 for a donated machine.
        egress_usd_per_gb: price of what it sends; 1 GB = 1e9 bytes.
        upload_bytes_per_second, download_bytes_per_second: of its link, within its owner's caps.
        relays: whether it may pass chunks on.
        preemptions_per_hour: mean number of preemptions.
        lost_per_preemption_s: seconds of work lost each time: unfinished rollouts, and until a replacement works.
        region: whose workers are lost together; empty: not known.
        speed_interval: relative error that 90 % of such speeds stay within; None: not known.
        active: whether it is on now.
        pin: the operator's decision for it, whatever is cheapest.
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
    speed_interval: float | None = None
    active: bool = False
    pin: Pin = ""

    @property
    def preemption_loss(self) -> float:
        """The share q of its work that preemptions cost, at most 1."""
        return lost_share(self.preemptions_per_hour, self.lost_per_preemption_s)

    def fastest_within(self, t_gen_s: float) -> Speed | None:
        """Return its fastest speed whose p90 is at most so many seconds; None if there is none."""
        fitting = [speed for speed in self.speeds if speed.t_gen_p90_s <= t_gen_s]
        return max(fitting, key=lambda speed: speed.rollouts_per_second, default=None)
