"""Define the replanner's events and actions as plain data; times come with handle(event, now), never inside."""

from __future__ import annotations

from dataclasses import dataclass, field

from capacity.model.demand import Demand
from capacity.model.workers import Worker

PAYBACK_S = 3600.0
"""Seconds within which a replacement must pay for its start: spot prices move and machines are preempted in hours."""
_DISCOUNT_MAX = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanSettings:
    """Settings that decide how readily the set of workers changes. Durations are in seconds.

    Args:
        incumbent_discount: share by which another worker must be cheaper than one that is on to replace it, where
            starting costs nothing: measured speeds are noisy. ``discount`` adds what a start costs.
        dwell_s: time for which a started worker stays on, and a stopped one stays off unless no set without it is
            feasible.
        interval_s: time after which the set is planned again without any other cause.
        start_s: time from a worker's start to its first rollouts: workers that it replaces stay on as long, unless a
            budget is set.
        headroom_kept: share of the headroom above 1 that suffices to leave the current set as it is; 1: all of it.
        gather_s: time within which causes are gathered into one plan.
        price_change: relative change of a price that is a cause to plan again.
        speed_change: relative change of a speed or a link that is a cause to plan again.
        time_limit_s: limit on the planner's search, which only refines an answer that is near the bound without it.
        solve_timeout_s: time without an answer after which a problem counts as failed.
        standby_usd_share: share of its price that sending versions to a worker that is off may cost; above it the
            worker receives none.
    """

    incumbent_discount: float = 0.15
    dwell_s: float = 300.0
    interval_s: float = 600.0
    start_s: float = 0.0
    headroom_kept: float = 0.5
    gather_s: float = 2.0
    price_change: float = 0.05
    speed_change: float = 0.2
    time_limit_s: float = 0.4
    solve_timeout_s: float = 30.0
    standby_usd_share: float = 0.1

    @property
    def discount(self) -> float:
        """Share by which the price of a worker that is on is reduced in the comparison with others.

        A replacement is paid for ``start_s`` before it generates, which what it saves in PAYBACK_S must cover.
        """
        return min(_DISCOUNT_MAX, self.incumbent_discount + self.start_s / PAYBACK_S)

    @property
    def stays_s(self) -> float:
        """Seconds for which a switched worker stays as it is: the dwell, and at least until it generates."""
        return max(self.dwell_s, self.start_s)


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker joined or changed. ``worker.active`` counts only if the worker was not known before.

    A worker without speeds was not measured yet: it is left on until it is.
    """

    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker left. ``preempted``: its owner or provider took it away, which counts in its market's rate."""

    worker_id: str
    reason: str
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class DemandSeen:
    """The learner's demand, as measured or set; sent again whenever it changes."""

    demand: Demand


@dataclass(frozen=True, slots=True)
class Measured:
    """The rates and times of the current set over the last ``seconds``.

    Args:
        seconds: length of the measurement.
        rollouts_per_s: rollouts that reached the learner's side, trained or not.
        workers_limit: whether the learner waited while every active worker was busy: then the rate is all that they
            can make, else it is only the rate that was asked of them.
        t_bcast_s, t_train_s: measured times; None: not measured in that time.
    """

    seconds: float
    rollouts_per_s: float
    workers_limit: bool
    t_bcast_s: float | None = None
    t_train_s: float | None = None


@dataclass(frozen=True, slots=True)
class Starving:
    """The learner waits although every active worker is busy."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The answer to a problem.

    Args:
        number: number of the problem.
        turn_on, turn_off: ids of workers to switch, each with the reason.
        reasons: ids of the other workers with their reasons; empty for pools of more than REASONS_MAX workers.
        dark: ids of workers that are off and do not receive versions either.
        on, off: number of workers that are on and off afterwards.
        infeasible: why no set is feasible, in words; empty if this one is.
        remedies: single changes that would make a set feasible.
    """

    number: int
    turn_on: tuple[tuple[str, str], ...] = ()
    turn_off: tuple[tuple[str, str], ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()
    dark: tuple[str, ...] = ()
    on: int = 0
    off: int = 0
    usd_per_hour: float = 0.0
    lp_bound_usd_per_hour: float = 0.0
    rate_rollouts_per_second: float = 0.0
    rate_needed_rollouts_per_second: float = 0.0
    t_bcast_s: float = 0.0
    staleness_needed: int = 0
    utilisation: float = 0.0
    solve_s: float = 0.0
    infeasible: str = ""
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SolveFailed:
    """The planner did not answer, or failed."""

    number: int
    why: str


Event = WorkerSeen | WorkerGone | DemandSeen | Measured | Starving | Tick | Solved | SolveFailed

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem for capacity.replan.deciding.decide, with every correction applied.

    Args:
        number: ascending number, which the answer carries.
        trigger: the cause of this plan, in words.
        workers: every measured worker; those started less than a dwell ago have ``pin="on"``.
        dwelling: ids of the workers started less than a dwell ago.
        resting: ids of workers stopped less than a dwell ago: used only if no set without them is feasible.
    """

    number: int
    trigger: str
    demand: Demand
    workers: tuple[Worker, ...]
    settings: ReplanSettings
    dwelling: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Solve:
    """Solve this problem and answer with Solved or SolveFailed; one problem is in flight at a time."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Start:
    """Switch this worker on."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Switch this worker off: it gets no new leases. ``receives``: whether it continues to receive versions."""

    worker_id: str
    reason: str
    receives: bool = field(default=True)


Action = Solve | Start | Stop
