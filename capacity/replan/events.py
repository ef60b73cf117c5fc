"""Define the replanner's events and actions. Plain data; times come with handle(event, now), never inside."""

from __future__ import annotations

from dataclasses import dataclass, field

from capacity.model.demand import Demand
from capacity.model.workers import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanSettings:
    """How eagerly the set is changed. Durations in seconds.

    Args:
        incumbent_discount: by which share the price of a worker that is on is taken lower than it is, so that another
            one must be that much cheaper to replace it. 0.2 to 0.4 is what spot prices ask for (docs/activation.md).
        dwell_s: a worker that was started stays on for so long, and one that was stopped stays off unless no set
            without it will do.
        interval_s: without any other cause the set is planned anew so often.
        headroom_kept: share of the headroom above 1 with which the set that is on is still left as it is; 1: all of it.
        gather_s: causes that come within so long are planned together.
        price_change: share of a price that it must change by to be a cause.
        speed_change: the same for a speed or a link.
        time_limit_s: for the planner's search; the answer is near the bound without it already.
        solve_timeout_s: after so long without an answer a problem counts as failed.
        standby_usd_share: a worker that is off goes on receiving versions if that costs at most this share of its
            price.
    """

    incumbent_discount: float = 0.3
    dwell_s: float = 300.0
    interval_s: float = 600.0
    headroom_kept: float = 0.5
    gather_s: float = 2.0
    price_change: float = 0.05
    speed_change: float = 0.2
    time_limit_s: float = 0.4
    solve_timeout_s: float = 30.0
    standby_usd_share: float = 0.1


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker joined or changed. ``worker.active`` counts only if the worker was not known before.

    A worker without speeds was not measured yet: it is left on until it is.
    """

    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerGone:
    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DemandSeen:
    """The learner's demand, as measured or set; sent again whenever it changes."""

    demand: Demand


@dataclass(frozen=True, slots=True)
class Measured:
    """The rates and times of the current set over the last ``seconds``.

    Args:
        rollouts_per_s: that reached the learner's side, wherever they ended.
        workers_limit: whether the learner waited while every worker that is on was busy: then the rate is all that
            they can make, else it is only what was asked of them.
        t_bcast_s, t_train_s: None: not measured in that time.
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
        turn_on, turn_off: worker ids with the reason, for those that the problem had the other way round.
        reasons: for the others, where there are few enough of them to be read.
        dark: workers that are off and do not receive versions either.
        infeasible: why no set is feasible, in words; empty if this one is.
        remedies: single changes that would help.
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
        number: rises; the answer carries it.
        trigger: why it is planned anew, in words.
        workers: those started lately have ``pin="on"``.
        dwelling: ids of these.
        resting: ids of workers that were stopped lately: used only if no set without them will do.
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
    """Solve this problem; answered by Solved or SolveFailed. One at a time."""

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
