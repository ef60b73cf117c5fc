"""Decide whether this machine may compute, send and receive now, from its owner's requests, schedules, quotas and
ceilings.

The module is pure: ``now`` is monotonic seconds, ``local`` is the owner's wall clock, which may jump; both are
arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, assert_never

from peer.limits.ceilings import Ceilings, CeilingWatch
from peer.limits.quota import Quota
from peer.limits.readings import Readings
from peer.limits.schedule import Schedule

Wish = Literal["run", "pause", "finish"]
DonorState = Literal["on", "resting", "paused", "finishing"]

_CLOCK_SLACK_S = 60.0  # by which the owner's clock may differ from the monotonic one before it counts as set back
REST_S = 30.0  # least pause after a ceiling was passed: a machine that cools down in seconds would flap


@dataclass(frozen=True, slots=True)
class OwnerRequest:
    """The owner's last request; it survives restarts.

    Args:
        until: local time at which the machine resumes by itself; None: it waits for the owner.
    """

    wish: Wish = "run"
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The operations allowed on this machine now.

    Args:
        compute: whether rollouts may be generated.
        send, receive: whether chunks may be sent and received; the connection to the coordinator stays open.
        state: the state in one word.
        reason: why an operation is not allowed; empty when everything is.
    """

    compute: bool
    send: bool
    receive: bool
    state: DonorState
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits that the owner set. Schedules are in local time."""

    compute: Schedule = field(default_factory=Schedule)
    network: Schedule = field(default_factory=Schedule)
    ceilings: Ceilings = field(default_factory=Ceilings)


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class OwnerAsked:
    """The owner made a request, by command, page or signal.

    Args:
        for_s: seconds after which the machine resumes by itself; None: it waits for the owner.
    """

    wish: Wish
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadingsTaken:
    """Sensors were read; the bytes are those moved since the last reading, the local network not counted."""

    readings: Readings
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The owner set other limits; ``quota`` continues this month's count."""

    rules: Rules
    quota: Quota


Event = OwnerAsked | ReadingsTaken | RulesChanged


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Allow:
    """Apply this from now on."""

    allowed: Allowed


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Write the owner's request to disk, so that a restart resumes with it."""

    asked: OwnerRequest


@dataclass(frozen=True, slots=True)
class FinishAndStop:
    """Complete the leases that are held, leave the relay's children to other peers, then end the process."""

    until: datetime | None


Action = Allow | SaveRequest | FinishAndStop


ALL = Allowed(compute=True, send=True, receive=True, state="on", reason="")


class LimitsCore:
    """Decide what is allowed, and emit Allow whenever that changes.

    Args:
        asked: the owner's request from before a restart; None: no request.
    """

    def __init__(self, rules: Rules, quota: Quota, asked: OwnerRequest | None = None) -> None:
        self._rules = rules
        self.quota = quota
        self.asked = _at_start(asked or OwnerRequest())
        self._watch = CeilingWatch(rules.ceilings)
        self._ceiling_reasons: tuple[str, ...] = ()
        self._rest_until = float("-inf")  # on the monotonic clock
        self._resume_at: float | None = None  # on the monotonic clock, if the owner's request ends by itself
        self._last_allowed: Allowed | None = None  # as of the last Allow

    def handle(self, event: Event, now: float, local: datetime) -> list[Action]:
        """Return the actions that this event causes, in the order in which to carry them out."""
        actions: list[Action] = []
        match event:
            case OwnerAsked(wish, for_s):
                actions += self._asked(wish, for_s, local)
            case ReadingsTaken():
                self._looked(event, now, local)
            case RulesChanged(rules, quota):
                self._rules, self.quota = rules, quota
                self._watch = CeilingWatch(rules.ceilings)
                self._ceiling_reasons, self._rest_until = (), float("-inf")  # the next reading judges the new limits
            case _:
                assert_never(event)
        actions += self._end_request(now, local)
        allowed = self.allowed(now, local)
        if allowed != self._last_allowed:
            self._last_allowed = allowed
            actions.append(Allow(allowed))
        return actions

    def _asked(self, wish: Wish, for_s: float | None, local: datetime) -> list[Action]:
        until = None if for_s is None or wish == "run" else local + timedelta(seconds=for_s)
        self.asked, self._resume_at = OwnerRequest(wish, until), None
        found: list[Action] = [SaveRequest(self.asked)]
        return [*found, FinishAndStop(until)] if wish == "finish" else found

    def _end_request(self, now: float, local: datetime) -> list[Action]:
        """End the owner's request at its time. A clock that is set back meanwhile does not prolong it."""
        until = self.asked.until
        if until is None:
            return []
        left_s = (until - local).total_seconds()
        if self._resume_at is None:
            self._resume_at = now + left_s
        if left_s <= 0.0:
            self.asked = OwnerRequest()
        elif left_s > self._resume_at - now + _CLOCK_SLACK_S:
            self.asked = replace(self.asked, until=local + timedelta(seconds=self._resume_at - now))
        else:
            return []
        return [SaveRequest(self.asked)]

    def _looked(self, event: ReadingsTaken, now: float, local: datetime) -> None:
        today = local.date()
        self.quota.moved(sent_bytes=event.sent_bytes, received_bytes=event.received_bytes, today=today)
        reasons = self._watch.reasons(event.readings)
        if reasons:
            self._rest_until = now + REST_S
            self._ceiling_reasons = reasons
        elif now >= self._rest_until:
            self._ceiling_reasons = ()

    def allowed(self, now: float, local: datetime) -> Allowed:
        """Return what this machine may do at this time."""
        match self.asked.wish:
            case "pause":
                return Allowed(False, False, False, "paused", f"paused by its owner{_until(self.asked.until)}")
            case "finish":
                return replace(ALL, state="finishing", reason="finishes its work, then stops")
            case "run":
                return self._by_rules(local)
            case _:
                assert_never(self.asked.wish)

    def _by_rules(self, local: datetime) -> Allowed:
        compute, send, receive = list(self._ceiling_reasons), list[str](), list[str]()
        if not self._rules.compute.is_open(local):
            compute.append(f"outside the hours for computing{_opens(self._rules.compute, local)}")
        if not self._rules.network.is_open(local):
            reason = f"outside the hours for the network{_opens(self._rules.network, local)}"
            send.append(reason)
            receive.append(reason)
        today = local.date()
        if self.quota.upload_spent(today):
            send.append(f"this month's upload is used up until {self.quota.resets_on(today)}")
        if self.quota.download_spent(today):
            receive.append(f"this month's download is used up until {self.quota.resets_on(today)}")
        reason = "; ".join(dict.fromkeys((*compute, *receive, *send)))
        return Allowed(not compute, not send, not receive, "resting" if compute else "on", reason)


def _at_start(asked: OwnerRequest) -> OwnerRequest:
    """Return the request to start with.

    A process holds no work at startup, so "finish" is already done; starting the process is itself a request to work,
    unless the owner named a time to resume.
    """
    if asked.wish != "finish":
        return asked
    return OwnerRequest() if asked.until is None else OwnerRequest("pause", asked.until)


def _until(until: datetime | None) -> str:
    return "" if until is None else f" until {until:%a %H:%M}"


def _opens(schedule: Schedule, local: datetime) -> str:
    minutes = schedule.minutes_until_change(local)
    return "" if minutes is None else f", next {local + timedelta(minutes=minutes):%a %H:%M}"
