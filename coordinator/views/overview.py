"""Build the Overview: the run's status, counts of workers, money, alerts, and what the run waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from typing_extensions import TypedDict

from coordinator.core.decisions.state import CoreState
from coordinator.core.members.progress import LEARNER_LIMITS_SHARE, RECENT_STEPS, WaitStage
from coordinator.core.status.status import RunStatus
from coordinator.views.alerts import Alert
from coordinator.views.phrases import duration, sentence

#: Seconds for which the learner may wait for a batch before the page shows it: some learners wait at every step.
BATCH_WAIT_SHOWN_S = 5.0
#: What the learner waits for, as the object of "it waits for".
#: What a paused run's sentence ends with.
RESUME = "Work in progress is finished and kept; `rollcast run resume` goes on."
_STAGES: Mapping[WaitStage, str] = {
    "no peer": "a worker to connect",
    "broadcast": "workers to receive a version",
    "evaluation": "evaluations that workers generate first",
    "prompts": "prompts",
    "generate": "rollouts that workers generate",
    "score": "scores",
    "store": "batches to be stored",
    "pacing": "rollouts that S holds back",
}
#: The learner's own step is shown as a wait once it takes so many times the median, and so many seconds.
STEP_SHOWN_TIMES, STEP_SHOWN_S = 3.0, 30.0

WaitingView = TypedDict("WaitingView", {"for": str, "since_s": float, "next": str, "sentence": str})


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Number of workers in each state; each is counted once, except that ``idle`` workers are also counted as ``on``.

    ``total`` counts connected workers, ``lost`` those among the last to leave that stopped sending heartbeats, and
    ``banned`` all banned workers, connected or not.
    """

    on: int
    idle: int
    standby: int
    lost: int
    quarantined: int
    drained: int
    banned: int
    total: int


@dataclass(frozen=True, slots=True)
class Overview(RunStatus):
    """The run's status with the Overview's other figures. Money is in US dollars, None where nothing has a price.

    ``usd_per_accepted_rollout`` is spent over accepted where workers are rented, else the price of an hour over the
    rollouts accepted in an hour at the rate of the last minutes. ``recent_utilisation`` is the share of the newest
    steps' time in which the learner computed.
    """

    workers: WorkerCounts
    usd_per_hour: float | None
    usd_per_accepted_rollout: float | None
    spent_usd: float | None
    rollouts_per_s: float | None
    recent_utilisation: float | None
    alerts: tuple[Alert, ...]
    waiting: WaitingView
    ended: str
    at_unix_s: float


_STATUS_FIELDS = tuple(field.name for field in fields(RunStatus))


def build_overview(
    state: CoreState,
    status: RunStatus,
    alerts: tuple[Alert, ...],
    spending: Mapping[str, Any] | None,
    *,
    accepted_per_s: float | None,
    unix_s: float,
) -> Overview:
    """Return the Overview. ``accepted_per_s``: recent rate of accepted rollouts, None if not known."""
    per_hour, spent_usd, usd_each = _money(state, status, spending, accepted_per_s)
    return Overview(
        **{name: getattr(status, name) for name in _STATUS_FIELDS},
        workers=count_workers(state),
        usd_per_hour=per_hour,
        usd_per_accepted_rollout=usd_each,
        spent_usd=spent_usd,
        rollouts_per_s=accepted_per_s,
        recent_utilisation=state.progress.recent_utilisation,
        alerts=alerts,
        waiting=waiting_view(state, status, alerts),
        ended=state.ended,
        at_unix_s=round(unix_s, 3),
    )


def waiting_view(state: CoreState, status: RunStatus, alerts: Sequence[Alert] = ()) -> WaitingView:
    """Return what the run waits for.

    ``sentence`` says first whether all is well, then what limits the run; a wait only if it costs the run something.
    """
    return {
        "for": status.waiting_for,
        "since_s": round(status.waiting_since_s, 1),
        "next": status.next,
        "sentence": (
            f"{state.paused.capitalize()}, {duration(status.waiting_since_s)} ago. {RESUME}"
            if status.phase == "paused"
            else f"The learner's warm start has been running for {duration(status.waiting_since_s)}: "
            f"{state.progress.detail}. Next: {status.next}."
            if _warm_starts(state)
            else f"{_health(alerts)}: {status.next}."
            if state.settings.is_cell and not status.waiting_for and not state.ended
            else sentence(status.waiting_for, status.waiting_since_s, status.next)
            if _wait_costs(state, status)
            else f"{_health(alerts)}: {_learner_does(status)}.{limits(state)}"
        ),
    }


def _warm_starts(state: CoreState) -> bool:
    """Return whether the run waits for the warm start, as coordinator.core.status.status words it."""
    waits_for_learner = state.newest_version is None and state.members.origin is not None and not state.ended
    return waits_for_learner and state.progress.is_warm_starting and not state.settings.is_cell


def _health(alerts: Sequence[Alert]) -> str:
    serious = sum(one.severity != "info" for one in alerts)
    if not serious:
        return "Healthy"
    return "Running with 1 alert" if serious == 1 else f"Running with {serious} alerts"


def limits(state: CoreState) -> str:
    """Return a sentence, after a space, about what limits the newest steps; empty before enough of them are timed."""
    progress = state.progress
    busy, steps = progress.recent_utilisation, len(progress.step_times)
    if busy is None or steps < RECENT_STEPS // 2:
        return ""
    if busy >= LEARNER_LIMITS_SHARE:
        return f" The learner sets the pace: it computes {busy:.0%} of the time."
    seconds: Counter[WaitStage] = Counter()
    for one in progress.recent_waits:
        seconds.update(one)
    del seconds["paused"]  # an operator's act is no limit of the run
    total_s = progress.recent_s
    stage, most_s = max(seconds.items(), key=lambda item: item[1], default=(None, 0.0))
    own_s = total_s * (1.0 - busy) - seconds.total()  # what is neither computing nor a wait for the run
    if stage is None or own_s > most_s:
        rest = "publishing, checkpoints, packing and transferring batches"
        return f" The learner computes {busy:.0%} of the time; {rest} take most of the rest."
    return f" The learner computes {busy:.0%} of the time and mostly waits for {_STAGES[stage]}."


def _wait_costs(state: CoreState, status: RunStatus) -> bool:
    """Whether a wait holds training up: the run nearly always waits for something, mostly for the learner's step."""
    if status.phase != "training" or status.step >= status.steps:
        return True
    if state.members.origin is None or not state.members.worker_count:
        return True
    if state.batches.wanted is not None:
        return status.waiting_since_s > BATCH_WAIT_SHOWN_S
    return status.waiting_since_s > max(STEP_SHOWN_S, STEP_SHOWN_TIMES * (status.t_train_s or 0.0))


def _learner_does(status: RunStatus) -> str:
    """Return "training step 90", or what else the learner reports of itself, for example an evaluation."""
    if status.learner_phase in ("", "training", "waiting"):
        return f"training step {status.step + 1}"
    return ", ".join(filter(None, (status.learner_phase.replace("_", " "), status.learner_detail)))


def count_workers(state: CoreState) -> WorkerCounts:
    """Count connected workers, and those that left most recently."""
    on = idle = standby = quarantined = drained = total = 0
    for member in state.members:
        if member.role != "peer":
            continue
        total += 1
        reputation = member.reputation
        if reputation.kept_out:
            quarantined += not reputation.banned
        elif reputation.drained:
            drained += 1
        elif reputation.standby:
            standby += 1
        else:
            on += 1
            idle += member.facts is not None and member.facts.state == "idle"
    banned = len(state.members.banned())
    gone = (one for one in state.members.departed() if one.how == "lost" and not one.member.reputation.banned)
    lost = sum(one.member.role == "peer" for one in gone)
    return WorkerCounts(on, idle, standby, lost, quarantined, drained, banned, total)


def usd_per_hour(state: CoreState, status: RunStatus, spending: Mapping[str, Any] | None) -> float | None:
    """Return the US dollars an hour of rented workers, else as prices are configured; None where there are none."""
    if spending is not None:
        rented: float = spending["usd_per_hour"]
        return rented
    return status.activation.usd_per_hour if state.prices else None


def _money(
    state: CoreState, status: RunStatus, spending: Mapping[str, Any] | None, accepted_per_s: float | None
) -> tuple[float | None, float | None, float | None]:
    """Return US dollars per hour, spent so far, and per accepted rollout; None where not known."""
    per_hour = usd_per_hour(state, status, spending)
    if spending is not None:
        return per_hour, spending["spent_usd"], spending["usd_per_accepted_rollout"]
    return per_hour, None, per_hour / 3600.0 / accepted_per_s if per_hour is not None and accepted_per_s else None
