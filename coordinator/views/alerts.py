"""What is wrong with a run, in words: what it is, how to put it right, on which page, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.core.decisions.state import CoreState
from coordinator.core.members.membership import Member
from coordinator.core.status.status import RunStatus
from coordinator.views.event_rows import EventView
from coordinator.views.phrases import duration, members_in_words

Severity = Literal["info", "warning", "critical"]
Page = Literal["workers", "broadcast", "run", "capacity", "events"]

WAITS_LONG_STEPS = 3.0  # learner steps for which it may wait for a batch
WAITS_LONG_S = 30.0  # and no less than this
WAITS_TOO_LONG_S = 600.0
LATE_SHARE = 0.1  # of the rollouts that ended lately, dropped because they were too old
LATE_LEAST = 50  # rollouts that must have ended for that to say anything
LOST_SHARE = 0.1  # of the workers, gone without a word
BROADCAST_SLOW = 3.0  # times the 95th percentile
SILENT_SHARE = 0.5  # of the time after which a member counts as lost
BUDGET_SHARE = 0.9
_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that is wrong now. ``id``: the same for as long as it is the same thing."""

    id: str
    severity: Severity
    text: str
    fix: str
    page: Page
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """The same, with the seconds for which it has been so. ``subject``: a peer id, a version, or empty."""

    id: str
    severity: Severity
    text: str
    fix: str
    since_s: float
    page: Page
    subject: str


@dataclass(frozen=True, slots=True)
class Lately:
    """What became of rollouts in the last minutes."""

    ended: int = 0  # trained or dropped
    too_old: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """The coordinator's own. ``refusing``: why uploads are refused at the moment, empty if they are not."""

    refusing: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that is looked at. ``cloned``: identities of which a second copy was refused lately."""

    state: CoreState
    status: RunStatus
    lately: Lately
    health: Health
    spending: Mapping[str, Any] | None
    now: float
    cloned: tuple[EventView, ...] = ()


class AlertBook:
    """Since when each alert holds. Times are the core's clock in seconds."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def update(self, found: Iterable[Found], now: float) -> tuple[Alert, ...]:
        """Those that hold now: the gravest first, of those the oldest first."""
        present = {one.id: one for one in found}
        self._since = {one: self._since.get(one, now) for one in present}
        alerts = [
            Alert(one.id, one.severity, one.text, one.fix, round(now - self._since[one.id], 1), one.page, one.subject)
            for one in present.values()
        ]
        return tuple(sorted(alerts, key=lambda one: (_ORDER[one.severity], -one.since_s, one.id)))


def find_alerts(seen: Seen) -> Iterator[Found]:
    """What is wrong now; nothing once the run is over."""
    if seen.state.ended:
        return
    for look in (_who_is_missing, _waiting, _staleness, _tokens, _members, _cloned, _broadcast, _capacity, _money):
        yield from look(seen)
    if seen.health.refusing:
        fix = "free space on the run folder's disk, or give the coordinator's machine less else to do"
        yield Found("refusing", "critical", f"rollouts are refused: {seen.health.refusing}", fix, "events")


def _who_is_missing(seen: Seen) -> Iterator[Found]:
    state = seen.state
    if state.members.origin is None:
        text = "there is no origin: the learner cannot publish, and nobody receives versions"
        yield Found("no_origin", "critical", text, "start `rollcast peer run` with the origin's invite", "workers")
    if not state.members.worker_count:
        fix = "make an invite, and run its line on a machine that is to work"
        yield Found("no_workers", "critical", "no worker is here", fix, "workers")


def _waiting(seen: Seen) -> Iterator[Found]:
    status, state = seen.status, seen.state
    if status.phase != "training" or state.batches.wanted is None:
        return
    long_s = max(WAITS_LONG_S, WAITS_LONG_STEPS * (state.forecast.step_period_s or 0.0))
    if status.waiting_since_s > long_s:
        severity: Severity = "critical" if status.waiting_since_s > WAITS_TOO_LONG_S else "warning"
        text = f"the learner has waited {duration(status.waiting_since_s)} for {status.waiting_for}"
        yield Found("learner_waits", severity, text, "add workers, or see what keeps those that are here", "run")


def _staleness(seen: Seen) -> Iterator[Found]:
    status, lately = seen.status, seen.lately
    needed, limit = status.staleness_needed, status.staleness_limit
    if needed is not None and needed > limit:
        text = f"S is {limit}, and what rollouts and broadcasts take here needs {needed}"
        fix = f"set S to {needed} or more, or leave out workers that are slow to generate or to receive"
        yield Found("staleness_too_small", "warning", text, fix, "run")
    if lately.ended >= LATE_LEAST and lately.too_old > LATE_SHARE * lately.ended:
        text = f"{lately.too_old / lately.ended:.0%} of the rollouts of the last minutes were too old to train on"
        fix = "raise S, or look on the Workers page for those with a large version lag"
        yield Found("too_old", "warning", text, fix, "run")


def _tokens(seen: Seen) -> Iterator[Found]:
    mismatch = seen.status.mismatch
    if mismatch is not None and mismatch.alarm:
        fix = "compare that worker's engine and precision with the others', or ban it"
        yield Found("mismatch", "warning", mismatch.alarm, fix, "workers")


def _members(seen: Seen) -> Iterator[Found]:
    state = seen.state
    quarantined = [one for one in state.members if one.standing.quarantined]
    if quarantined:
        worst = quarantined[-1]
        text = f"{worst.name} is quarantined: it {worst.standing.quarantined}"
        if len(quarantined) > 1:
            text = f"{len(quarantined)} workers are quarantined, {worst.name} last: it {worst.standing.quarantined}"
        fix = "ban it, or enable it again if its machine was repaired"
        yield Found("quarantined", "warning", text, fix, "workers", worst.peer_id)
    lost = [gone.member for gone in state.members.departed() if gone.how == "lost"]
    if lost:
        share = len(lost) / max(1, len(state.members) + len(lost))
        severity: Severity = "warning" if share > LOST_SHARE else "info"
        text = f"{members_in_words(lost)} lost: no word for {duration(state.settings.heartbeat_timeout_s)}"
        yield Found("lost", severity, text, "nothing: their work was given to others", "workers", lost[-1].peer_id)
    yield from _silent(seen)


def _silent(seen: Seen) -> Iterator[Found]:
    state, limit_s = seen.state, SILENT_SHARE * seen.state.settings.heartbeat_timeout_s
    silent = [one for one in state.members if seen.now - one.last_seen > limit_s]
    if silent:
        longest: Member = min(silent, key=lambda one: one.last_seen)
        since = duration(seen.now - longest.last_seen)
        text = f"{longest.name} has been silent for {since}"
        if len(silent) > 1:
            text = f"{len(silent)} workers are silent, {longest.name} for {since}"
        fix = "nothing, unless it goes on: then look at that machine's network"
        yield Found("silent", "info", text, fix, "workers", longest.peer_id)


def _cloned(seen: Seen) -> Iterator[Found]:
    for event in {one.subject: one for one in reversed(seen.cloned)}.values():
        text = f"two machines use the identity of {event.name or event.subject}: {event.detail}"
        fix = "tell its owner to give the second machine an identity of its own (RC306)"
        yield Found(f"cloned:{event.subject}", "warning", text, fix, "workers", event.subject)


def _broadcast(seen: Seen) -> Iterator[Found]:
    state, newest = seen.state, seen.state.dissemination.newest
    usual_s = seen.status.t_bcast_s.p95
    if newest is None or not newest.missing or usual_s is None:
        return
    takes_s = seen.now - newest.announced_at
    missing = [one for one in map(state.members.get, newest.missing) if one is not None]
    if missing and takes_s > BROADCAST_SLOW * usual_s:
        who = members_in_words(missing)
        text = f"version {newest.version} has been on its way for {duration(takes_s)}: {who} without it"
        fix = "look on the Broadcast page for the slowest branch"
        yield Found("broadcast_slow", "warning", text, fix, "broadcast", str(newest.version))


def _capacity(seen: Seen) -> Iterator[Found]:
    activation = seen.status.activation
    if activation.failed:
        text = f"the last plan of which workers to have on failed: {activation.failed}"
        yield Found("plan_failed", "warning", text, "nothing: the set stays as it is until the next plan", "capacity")
    plan = activation.plan
    if plan is not None and plan.infeasible:
        fix = "; or ".join(plan.remedies) or "add workers, or raise S"
        yield Found("plan_infeasible", "warning", f"no set of workers will do: {plan.infeasible}", fix, "capacity")


def _money(seen: Seen) -> Iterator[Found]:
    spending = seen.spending
    if spending is None:
        return
    spent, most = spending["spent_usd"], spending["usd_max"]
    if most is not None and spent > BUDGET_SHARE * most:
        severity: Severity = "critical" if spent >= most else "warning"
        text = f"{spent:.2f} of {most:.2f} US dollars are spent"
        yield Found("budget", severity, text, "raise the budget, or let the run end", "capacity")
    if spending["held_back"]:
        worker_id, why = next(iter(spending["held_back"].items()))
        text = f"{len(spending['held_back'])} workers are wanted and not started: {worker_id}, {why}"
        yield Found("held_back", "info", text, "raise the budget if they are worth it", "capacity", worker_id)
