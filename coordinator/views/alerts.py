"""Find the problems of a run: what is wrong, what to do about it, on which page, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.core.decisions.state import CoreState
from coordinator.core.members.membership import Member
from coordinator.core.members.progress import LEARNER_LIMITS_SHARE
from coordinator.core.status.status import RunStatus
from coordinator.views.event_rows import EventView
from coordinator.views.phrases import duration, members_in_words

Severity = Literal["info", "warning", "critical"]
Page = Literal["workers", "broadcast", "run", "capacity", "events"]

STARTS_S = (
    60.0  # of a coordinator, for which the run's processes may still be loading; "Now" says what the run waits for
)
WAITS_LONG_STEPS = 3.0  # learner steps after which a wait for a batch is an alert
WAITS_LONG_S = 30.0  # but never before this
WAITS_TOO_LONG_S = 600.0
LATE_SHARE = 0.1  # share of recent rollouts that were dropped because they were too old
LATE_LEAST = 50  # recent rollouts below which that share means little
LOST_SHARE = 0.1  # share of workers lost without signing off that makes it a warning
BROADCAST_SLOW = 3.0  # multiple of the 95th percentile of T_bcast
SILENT_SHARE = 0.5  # share of the heartbeat timeout after which a silent member is reported
BUDGET_SHARE = 0.9
SKIPPED_LATELY_STEPS = 100  # learner steps for which a skipped update is an alert
_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Found:
    """A problem at this moment. ``id`` stays the same as long as the problem lasts."""

    id: str
    severity: Severity
    text: str
    fix: str
    page: Page
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem and for how many seconds it has lasted. ``subject``: a peer id, a version, or empty."""

    id: str
    severity: Severity
    text: str
    fix: str
    since_s: float
    page: Page
    subject: str


@dataclass(frozen=True, slots=True)
class Lately:
    """Counts of the rollouts that ended in the last minutes."""

    ended: int = 0  # trained or dropped
    too_old: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """The coordinator's own health.

    Args:
        refusing: why uploads are refused at the moment; empty if they are not.
        fix: what a person does about it.
    """

    refusing: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """The data from which alerts are found.

    Args:
        up_s: seconds for which this coordinator has run.
        cloned: recent rejections of a second copy of an identity.
    """

    state: CoreState
    status: RunStatus
    lately: Lately
    health: Health
    spending: Mapping[str, Any] | None
    now: float
    up_s: float
    cloned: tuple[EventView, ...] = ()


class AlertBook:
    """Keeps the time since which each alert has lasted. Times are the core's clock in seconds."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def update(self, found: Iterable[Found], now: float) -> tuple[Alert, ...]:
        """Return the present alerts: the most severe first, and the oldest first among equals."""
        present = {one.id: one for one in found}
        self._since = {one: self._since.get(one, now) for one in present}
        alerts = [
            Alert(one.id, one.severity, one.text, one.fix, round(now - self._since[one.id], 1), one.page, one.subject)
            for one in present.values()
        ]
        return tuple(sorted(alerts, key=lambda one: (_ORDER[one.severity], -one.since_s, one.id)))


def find_alerts(seen: Seen) -> Iterator[Found]:
    """Yield the present problems; none once the run is over."""
    if seen.state.ended:
        return
    for check in _CHECKS if seen.state.last_step is None else _CHECKS_AT_THE_END:
        yield from check(seen)
    if seen.health.refusing:
        text = f"Rollouts are refused: {seen.health.refusing}."
        yield Found("refusing", "critical", text, seen.health.fix, "events")


def _missing_roles(seen: Seen) -> Iterator[Found]:
    state = seen.state
    if seen.up_s < STARTS_S:
        return
    if state.members.origin is None:
        text = "There is no origin: the learner cannot publish, and peers receive no versions."
        yield Found(
            "no_origin", "critical", text, "Start the origin with `rollcast peer run` and its invite.", "workers"
        )
    if not state.members.worker_count:
        fix = "Create an invite and run its command on a machine."
        yield Found("no_workers", "critical", "No workers are connected.", fix, "workers")


def _waiting(seen: Seen) -> Iterator[Found]:
    status, state = seen.status, seen.state
    if status.phase != "training" or state.batches.wanted is None:
        return
    long_s = max(WAITS_LONG_S, WAITS_LONG_STEPS * (state.forecast.step_period_s or 0.0))
    if status.waiting_since_s > long_s:
        severity: Severity = "critical" if status.waiting_since_s > WAITS_TOO_LONG_S else "warning"
        text = f"The learner has waited {duration(status.waiting_since_s)} for {status.waiting_for}."
        yield Found(
            "learner_waits",
            severity,
            text,
            "Add workers, or see on the Workers page why those connected are not generating.",
            "run",
        )


def _staleness(seen: Seen) -> Iterator[Found]:
    status, lately = seen.status, seen.lately
    needed, limit = status.staleness_needed, status.staleness_limit
    busy = seen.state.progress.recent_utilisation or 0.0
    if needed is not None and needed > limit and busy < LEARNER_LIMITS_SHARE:
        text = f"S is {limit}, but the measured times of rollouts and broadcasts require {needed}."
        fix = f"{_raise_s(needed)}, or drain workers that generate or receive slowly."
        yield Found("staleness_too_small", "warning", text, fix, "run")
    if lately.ended >= LATE_LEAST and lately.too_old > LATE_SHARE * lately.ended:
        text = f"{lately.too_old / lately.ended:.0%} of the rollouts of the last minutes were too old to train on."
        fix = f"{_raise_s(limit + 1)}, or look on the Workers page for workers with a large version lag."
        yield Found("too_old", "warning", text, fix, "run")


def _raise_s(needed: int) -> str:
    return f"Set S to {needed} or more on the Settings page"


def _scoring(seen: Seen) -> Iterator[Found]:
    scoring = seen.status.scoring
    last = scoring.last_failure.strip().rpartition("\n")[2]
    if scoring.paused:
        text = f"Scoring is paused and no leases are issued, because verdicts fail: {last}."
        fix = "Repair the reward function or its service. One rollout is tried at intervals; the Events page has more."
        yield Found("scoring_paused", "critical", text, fix, "events")
    elif scoring.unscorable_groups:
        groups = (
            f"{scoring.unscorable_groups} prompt groups were" if scoring.unscorable_groups > 1 else "1 prompt group was"
        )
        text = f"{groups} dropped because a rollout could not be scored, the last time: {last}."
        fix = "See scoring_failed on the Events page. Raise the coordinator's verifier.timeout_s if that is only slow."
        yield Found("unscorable", "warning", text, fix, "events")


def _updates(seen: Seen) -> Iterator[Found]:
    status, last = seen.status, seen.status.updates_skipped_at
    if last is None or status.step - last >= SKIPPED_LATELY_STEPS:
        return
    severity: Severity = "critical" if last == status.step else "warning"
    count = status.updates_skipped
    text = f"{count} update was" if count == 1 else f"{count} updates were"
    text += f" skipped because loss or gradient norm was not finite, the last at step {last}."
    fix = "Read the reports in skipped_updates/ of the learner's run folder. Three steps in a row end the run (RC605)."
    yield Found("update_skipped", severity, text, fix, "run")


def _tokens(seen: Seen) -> Iterator[Found]:
    mismatch = seen.status.mismatch
    if mismatch is not None and mismatch.alarm:
        fix = "Compare that worker's engine and precision with those of the others, or ban it."
        text = f"{mismatch.alarm[0].upper()}{mismatch.alarm[1:]}."
        yield Found("mismatch", "warning", text, fix, "workers")


def _members(seen: Seen) -> Iterator[Found]:
    state = seen.state
    quarantined = [one for one in state.members if one.reputation.quarantined]
    if quarantined:
        worst = quarantined[-1]
        text = f"{worst.name} is quarantined: it {worst.reputation.quarantined}."
        if len(quarantined) > 1:
            text = f"{len(quarantined)} workers are quarantined, {worst.name} last: it {worst.reputation.quarantined}."
        fix = "Ban it, or enable it once its machine is repaired."
        yield Found("quarantined", "warning", text, fix, "workers", worst.peer_id)
    lost = [gone.member for gone in state.members.departed() if gone.how == "lost"]
    if lost:
        share = len(lost) / max(1, len(state.members) + len(lost))
        severity: Severity = "warning" if share > LOST_SHARE else "info"
        text = f"{members_in_words(lost)} lost: no heartbeat for {duration(state.settings.heartbeat_timeout_s)}."
        yield Found(
            "lost",
            severity,
            text,
            "No action needed: their work was reassigned to other workers.",
            "workers",
            lost[-1].peer_id,
        )
    yield from _silent(seen)


def _silent(seen: Seen) -> Iterator[Found]:
    state, limit_s = seen.state, SILENT_SHARE * seen.state.settings.heartbeat_timeout_s
    silent = [one for one in state.members if seen.now - one.last_seen > limit_s]
    if silent:
        longest: Member = min(silent, key=lambda one: one.last_seen)
        since = duration(seen.now - longest.last_seen)
        text = f"{longest.name} has sent no heartbeat for {since}."
        if len(silent) > 1:
            text = f"{len(silent)} workers send no heartbeats, {longest.name} for {since}."
        fix = "If this lasts, check that machine's network."
        yield Found("silent", "info", text, fix, "workers", longest.peer_id)


def _cloned(seen: Seen) -> Iterator[Found]:
    for event in {one.subject: one for one in reversed(seen.cloned)}.values():
        text = f"Two machines use the identity of {event.name or event.subject}: {event.detail}."
        fix = "Ask its owner to give the second machine its own identity (RC306)."
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
        text = f"Version {newest.version} has been spreading for {duration(takes_s)}: {who} without it."
        fix = "Look on the Broadcast page for the slowest branch."
        yield Found("broadcast_slow", "warning", text, fix, "broadcast", str(newest.version))


def _capacity(seen: Seen) -> Iterator[Found]:
    activation = seen.status.activation
    if activation.failed:
        text = f"The last capacity plan failed: {activation.failed}."
        yield Found(
            "plan_failed",
            "warning",
            text,
            "No action needed: the same workers stay on until the next plan.",
            "capacity",
        )
    plan = activation.plan
    if plan is not None and plan.infeasible:
        more = _raise_s(seen.status.staleness_limit + 1)
        fix = "; or ".join(plan.remedies) or f"Add workers. {more}, if they are fast enough but late."
        yield Found(
            "plan_infeasible", "warning", f"No set of workers is sufficient: {plan.infeasible}.", fix, "capacity"
        )


def _money(seen: Seen) -> Iterator[Found]:
    spending = seen.spending
    if spending is None:
        return
    spent, most = spending["spent_usd"], spending["usd_max"]
    if most is not None and spent > BUDGET_SHARE * most:
        severity: Severity = "critical" if spent >= most else "warning"
        text = f"{spent:.2f} of {most:.2f} US dollars are spent."
        yield Found("budget", severity, text, "Raise the budget, or let the run end.", "capacity")
    if spending["held_back"]:
        worker_id, why = next(iter(spending["held_back"].items()))
        text = f"{len(spending['held_back'])} workers are wanted but not started: {worker_id}, {why}."
        yield Found("held_back", "info", text, "Raise the budget to have them started.", "capacity", worker_id)


_CHECKS = (
    _missing_roles,
    _waiting,
    _staleness,
    _scoring,
    _updates,
    _tokens,
    _members,
    _cloned,
    _broadcast,
    _capacity,
    _money,
)
#: Of a run that is finishing: another S, more workers or a faster broadcast change nothing any more.
_CHECKS_AT_THE_END = tuple(one for one in _CHECKS if one not in (_staleness, _broadcast, _capacity))
