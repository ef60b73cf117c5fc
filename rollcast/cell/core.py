"""Decide what a cell's uplink tells the head and the cell: leases go down, what is over and what is free go up. Pure.

The cell's coordinator keeps the slots and rollouts, durably. The uplink keeps nothing that matters: what it loses is
reported again by the head, which hears of the leases that the cell has, or by the cell, which returns its rollouts
until their slots are over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from peer.worker.core.events import (
    LeasesGranted,
    LeasesRevoked,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    SessionLost,
    SessionOpened,
    Tick,
    Verdict,
    VersionKey,
)
from peer.worker.core.pacing import SlotsAsked
from peer.worker.core.spool import BUSY
from rollcast.wire.ids import Epoch, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import LeaseGrant

REPORT_S = 1.0  # between two reports to the cell without news
ANSWER_MAX_S = 10.0  # since the cell's last answer, after which the head is asked for no work
_DEADLINES_KEPT = 2.0  # a restarted head extends live leases by one period


@dataclass(frozen=True, slots=True)
class CellAnswered:
    """The cell answered a report."""

    answer: pb.CellAnswer


@dataclass(frozen=True, slots=True)
class Delivered:
    """The head answered uploads of the cell's rollouts; the cell hears of these slots with the next delivery."""

    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class MemberJudged:
    """The head's learner judged a member of the cell."""

    peer_id: PeerId
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Report to the cell; answered by CellAnswered. One at a time."""

    leases: tuple[LeaseGrant, ...] = ()
    ended: tuple[tuple[LeaseId, str], ...] = ()  # whole leases, with the reason
    convicted: tuple[tuple[PeerId, str], ...] = ()


Event = SessionOpened | SessionLost | LeasesGranted | LeasesRevoked | CellAnswered | Delivered | MemberJudged | Tick
Action = RequestWork | ReturnLeases | ReportVersionHeld | Report


@dataclass(slots=True)
class _Held:
    """A lease of the head that came in this life of the uplink."""

    grant: LeaseGrant
    gone_s: float  # from when on the head takes no rollout of it
    open: set[int]  # samples that are not over
    reported: bool = False


@dataclass(frozen=True, slots=True)
class CellSize:
    """What the cell's members can do, as the cell last reported it."""

    workers: int | None = 0  # None: not known
    slots: int = 0
    tokens_generated: int = 0
    tokens_per_second: float = 0.0


@dataclass(slots=True)
class _News:
    """What the cell has not been told yet."""

    ended: dict[LeaseId, str] = field(default_factory=dict)
    convicted: dict[PeerId, str] = field(default_factory=dict)


class UplinkCore:
    """An uplink's decisions; ``handle`` takes an event and returns the actions to carry out."""

    def __init__(self) -> None:
        self.connected = False
        self.size = CellSize()
        self._held: dict[LeaseId, _Held] = {}
        self._at_cell: frozenset[LeaseId] = frozenset()
        self._slots_wanted = self._slots_lent = 0
        self._news = _News()
        self._reporting: Report | None = None
        self._report_due_s = 0.0
        self._answered_s: float | None = None
        self._version: VersionKey | None = None
        self._asked = SlotsAsked()

    @property
    def held_leases(self) -> list[LeaseId]:
        """Return every lease of which a rollout may still be uploaded."""
        ended = self._news.ended
        return [one for one in dict.fromkeys([*self._held, *sorted(self._at_cell)]) if one not in ended]

    @property
    def next_wake_s(self) -> float:
        """Return when a Tick may next have an effect."""
        return min([self._report_due_s, *(held.gone_s for held in self._held.values())])

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply an event, and return what to do."""
        actions = self._apply(event, now)
        actions += self._expire(now)
        return [*actions, *self._ask(now), *self._report(now)]

    def _apply(self, event: Event, now: float) -> list[Action]:
        match event:
            case SessionOpened():
                self.connected, self._asked = True, SlotsAsked()
                return [] if self._version is None else [ReportVersionHeld(self._version)]
            case SessionLost():
                self.connected = False
            case LeasesGranted(leases):
                return self._granted(leases, now)
            case LeasesRevoked(lease_ids, reason):
                for lease_id in lease_ids:
                    self._end(lease_id, reason or "revoked")
            case CellAnswered(answer):
                return self._answered(answer, now)
            case Delivered(verdicts):
                for verdict in verdicts:
                    if verdict.reason != BUSY:
                        self._over(verdict.lease_id, verdict.sample_index)
            case MemberJudged(peer_id, state, reason):
                if state == "quarantined":
                    self._news.convicted[peer_id] = reason
            case Tick():
                pass
        return []

    def _granted(self, leases: Iterable[LeaseGrant], now: float) -> list[Action]:
        refused: list[LeaseId] = []
        for grant in leases:
            self._asked.granted(len(grant.slots))
            if grant.lease_id in self._held or grant.lease_id in self._at_cell:
                continue
            if grant.kind != "training" or any(slot.prefix for slot in grant.slots):
                refused.append(grant.lease_id)
                continue
            gone_s = now + _DEADLINES_KEPT * grant.deadline_s
            self._held[grant.lease_id] = _Held(grant, gone_s, {slot.sample_index for slot in grant.slots})
        return [ReturnLeases(tuple(refused), "a cell begins whole completions only")] if refused else []

    def _over(self, lease_id: LeaseId, sample_index: int) -> None:
        held = self._held.get(lease_id)
        if held is not None:
            held.open.discard(sample_index)
            if not held.open:
                del self._held[lease_id]

    def _end(self, lease_id: LeaseId, reason: str) -> None:
        self._held.pop(lease_id, None)
        self._news.ended[lease_id] = reason

    def _expire(self, now: float) -> list[Action]:
        for lease_id in [one for one, held in self._held.items() if now >= held.gone_s]:
            self._end(lease_id, "lease_expired")
        return []

    # ---------------------------------------------------------------- the cell

    def _answered(self, answer: pb.CellAnswer, now: float) -> list[Action]:
        report, self._reporting = self._reporting, None
        self._answered_s = now
        self._at_cell = frozenset(LeaseId(one) for one in answer.leases)
        self._slots_wanted, self._slots_lent = answer.slots_wanted, answer.slots_lent
        self.size = CellSize(answer.workers, answer.slots, answer.tokens_generated, answer.tokens_per_second)
        if report is not None:
            for grant in report.leases:
                if grant.lease_id in self._held:
                    self._held[grant.lease_id].reported = True
            self._news.ended = {one: why for one, why in self._news.ended.items() if (one, why) not in report.ended}
            convicted = self._news.convicted.items()
            self._news.convicted = {one: why for one, why in convicted if (one, why) not in report.convicted}
        for lease_id, held in self._held.items():  # it was restarted, and had not opened all of their slots
            if held.reported and lease_id not in self._at_cell:
                held.reported = False
        key = VersionKey(Version(answer.version), Epoch(answer.epoch)) if answer.has_version else None
        if key is None or key == self._version:
            return []
        self._version = key
        return [ReportVersionHeld(key)] if self.connected else []

    def _report(self, now: float) -> list[Action]:
        """Report what is new, and something at least once in REPORT_S, as the cell's answer is news as well."""
        if self._reporting is not None:
            return []
        leases = tuple(held.grant for held in self._held.values() if not held.reported)
        news = leases or self._news.ended or self._news.convicted
        if not news and now < self._report_due_s:
            return []
        self._report_due_s = now + REPORT_S
        self._reporting = Report(leases, tuple(self._news.ended.items()), tuple(self._news.convicted.items()))
        return [self._reporting]

    # ---------------------------------------------------------------- the head

    def _ask(self, now: float) -> list[Action]:
        free = self._free_slots(now)
        return [RequestWork(free)] if self.connected and self._asked.is_news(free) else []

    def _free_slots(self, now: float) -> int:
        if self._version is None or self._answered_s is None or now - self._answered_s > ANSWER_MAX_S:
            return 0
        coming = sum(len(held.grant.slots) for held in self._held.values() if not held.reported)
        return max(0, self._slots_wanted - self._slots_lent - coming)
