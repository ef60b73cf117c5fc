"""Decide from the learner's findings which identity did not sample as its leases asked for. Pure.

The learner reports how many of an identity's tokens were judged, how many had a margin beyond the bound of an honest
sampler, and how many far beyond it (learner.alignment.audit). An honest token is beyond with a probability of at most
BEYOND_P, by how the bounds were chosen, and far beyond with at most FAR_P. Against that stand cheats that are beyond
with some larger probability, which nobody knows; so the test averages the likelihood ratios of several. Such an
average is a martingale with mean 1 for an honest identity, and exceeds 1 / a ever with a probability of at most a
(Ville's inequality; Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid inference", section 3.1).

What is found about identities of an invite that are not convicted is added up in the same way, because new identities
are cheap: a cheat that uses each for a few tokens is convicted as an invite. So is an invite of which SUSPENDED_AT
identities are convicted. It is then suspended: its identities get no work until the operator enables them, except
those that have proved themselves. Others may share the invite, and must not lose their place by what a cheat does.

Long honest work must not pay for later cheating, so the test starts anew every WINDOW_TOKENS. The k-th one may accuse
falsely with a probability of ACCUSED_P / (k (k + 1)), and all of them together with at most ACCUSED_P.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from coordinator.core.events.audit_events import AuditRestored, RolloutAudit
from coordinator.core.members.audit_queue import SHARE_LEAST
from rollcast.wire.ids import PeerId, Step

AUDIT = "audit"  # key in the ledger's meta table, for the book as JSON
RECORDS_MAX = 16384  # identities; beyond, those without a conviction that were judged first are discarded

ACCUSED_P = 1e-10  # of a false accusation of one identity: 1e-6 in a run of 10,000
BEYOND_P = 1e-6  # of an honest token beyond its bound; bounds are several times the largest of 100,000
FAR_P = 1e-18  # of an honest token far beyond it: memory that fails, not rounding
CHEATS_P = (0.3, 0.03, 0.003)  # of a cheat's token beyond the bound
WINDOW_TOKENS = 8192
PROBATION_ROLLOUTS = 20
SUSPENDED_AT = 2  # convicted identities of an invite


@dataclass(slots=True)
class AuditRecord:
    """What was found about one identity, or all identities of an invite.

    ``window_...`` count since the test started anew for the last time.
    """

    invite: str = ""  # with which the identity joined; empty if unknown
    rollouts: int = 0
    tokens: int = 0
    beyond: int = 0
    good_in_a_row: int = 0  # rollouts without a token beyond
    window: int = 1
    window_tokens: int = 0
    window_beyond: int = 0
    window_far: int = 0
    worst_nats: float = 0.0
    bound_nats: float = 0.0  # of the token with the largest margin
    worst_rollout: int = 0
    worst_at: int = 0  # index of that token in the completion
    sampler: str = ""  # kind of engine and device that the identity claimed last
    trained: int = 0  # rollouts that were trained on
    left_out: int = 0  # rollouts with a token beyond its bound
    convicted: str = ""  # why; empty if it is not
    appeal: str = ""  # engine and device with which it appealed against a conviction; empty if it did not

    @property
    def state(self) -> Literal["convicted", "watched", "probation", "good"]:
        """Return "convicted", "watched" (a token beyond), "probation" (few rollouts yet) or "good"."""
        if self.convicted:
            return "convicted"
        if self.beyond:
            return "watched"
        return "probation" if self.rollouts < PROBATION_ROLLOUTS else "good"

    @property
    def on_appeal(self) -> bool:
        """Whether few rollouts were judged since the identity appealed."""
        return bool(self.appeal) and self.rollouts < PROBATION_ROLLOUTS

    @property
    def evidence(self) -> float:
        """Return the logarithm of this window's likelihood ratio against an honest sampler."""
        near = self.window_beyond - self.window_far
        within = self.window_tokens - self.window_beyond
        ratios = [
            self.window_far * math.log(p / 2.0 / FAR_P)
            + near * math.log(p / 2.0 / BEYOND_P)
            + within * (math.log1p(-p) - math.log1p(-BEYOND_P - FAR_P))
            for p in CHEATS_P
        ]
        highest = max(ratios)
        return highest + math.log(sum(math.exp(one - highest) for one in ratios) / len(ratios))

    @property
    def evidence_needed(self) -> float:
        """Return the evidence at which this window convicts."""
        return -math.log(ACCUSED_P) + math.log(self.window * (self.window + 1))

    def add(self, found: RolloutAudit) -> None:
        """Add a finding; convict if that is enough."""
        self.rollouts += 1
        self.tokens += found.tokens
        self.beyond += found.beyond
        self.good_in_a_row = 0 if found.beyond else self.good_in_a_row + 1
        self.window_tokens += found.tokens
        self.window_beyond += found.beyond
        self.window_far += found.far
        self.trained += found.trained
        self.left_out += found.beyond > 0
        self.sampler = found.sampler or self.sampler
        if found.tokens and found.worst_nats >= self.worst_nats:
            self.worst_nats, self.bound_nats = found.worst_nats, found.bound_nats
            self.worst_rollout, self.worst_at = found.rollout_id, found.worst_at
        if not self.convicted and self.evidence > self.evidence_needed:
            worst = f"one in rollout {self.worst_rollout} is {self.worst_nats:.3g} nats off"
            self.convicted = (
                f"sent tokens that its seeds and versions do not give: {self.beyond} of {self.tokens} judged, {worst}, "
                f"where {self.bound_nats:.3g} is allowed"
            )
        elif self.window_tokens >= WINDOW_TOKENS:
            self.window += 1
            self.window_tokens = self.window_beyond = self.window_far = 0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Whom the findings of a step convict."""

    convicted: tuple[PeerId, ...] = ()
    suspended: tuple[str, ...] = ()  # invites


class AuditBook:
    """The records of all identities and invites, and the step up to which findings are in them."""

    def __init__(self) -> None:
        self.step = Step(-1)
        self._records: dict[PeerId, AuditRecord] = {}
        self._invites: dict[str, AuditRecord] = {}
        self._any_passed = False  # whether an invite is through its probation

    def record(self, peer_id: PeerId) -> AuditRecord | None:
        """Return what was found about an identity; None if nothing was judged."""
        return self._records.get(peer_id)

    def invite(self, invite: str) -> AuditRecord | None:
        """Return what was found about an invite's identities that are not convicted; None if nothing was judged."""
        return self._invites.get(invite)

    def known(self) -> tuple[list[PeerId], list[str]]:
        """Return the identities and the invites about which anything was found."""
        return list(self._records), list(self._invites)

    def add(self, step: Step, findings: Iterable[RolloutAudit], invite_of: Callable[[PeerId], str]) -> Verdicts:
        """Add the findings of a step and return whom they convict. A step counts once.

        Args:
            invite_of: returns the invite of an identity; empty if it is unknown.
        """
        found = list(findings)
        if not found or step <= self.step:
            return Verdicts()
        self.step = step
        convicted, suspended = list[PeerId](), list[str]()
        for one in found:
            record = self._records.setdefault(one.peer_id, AuditRecord())
            record.invite = invite_of(one.peer_id) or record.invite
            before, reason_before = record.convicted, self.suspended(record.invite)
            record.add(one)
            if record.convicted and not before:
                convicted.append(one.peer_id)
            if record.invite:
                self._add_to_invite(record, one, convicts=record.convicted != before)
                if self.suspended(record.invite) and not reason_before:
                    suspended.append(record.invite)
        self._note_passed()
        self._discard()
        return Verdicts(tuple(convicted), tuple(suspended))

    def _note_passed(self) -> None:
        known = self._invites.values()
        self._any_passed = any(one.rollouts >= PROBATION_ROLLOUTS and not one.convicted for one in known)

    def _add_to_invite(self, record: AuditRecord, found: RolloutAudit, *, convicts: bool) -> None:
        """Add up what convicts no identity by itself, and count the identities that are convicted."""
        pooled = self._invites.setdefault(record.invite, AuditRecord())
        if not record.convicted:
            pooled.add(found)
        elif convicts and not pooled.convicted:
            same = (one for one in self._records.values() if one.invite == record.invite)
            count = sum(bool(one.convicted) for one in same)
            if count >= SUSPENDED_AT:
                pooled.convicted = f"{count} of its identities were convicted by audits"

    def share_audited(self, peer_id: PeerId, invite: str) -> float:
        """Return the share of an identity's rollouts that are judged although they are not trained on."""
        record, pooled = self._records.get(peer_id), self._invites.get(invite)
        if record is None or record.on_appeal or (record if pooled is None else pooled).rollouts < PROBATION_ROLLOUTS:
            return 1.0
        return max(SHARE_LEAST, 1.0 / max(1, record.good_in_a_row))

    def on_appeal(self, peer_id: PeerId) -> bool:
        """Whether few rollouts of an identity were judged since it appealed."""
        record = self._records.get(peer_id)
        return record is not None and record.on_appeal

    def on_probation(self, invite: str) -> bool:
        """Whether few rollouts of an invite were judged yet, while another one has passed.

        Without another one there would be nobody else to do the work, as at the start or where nothing can be judged.
        """
        record = self._invites.get(invite)
        return self._any_passed and (record is None or record.rollouts < PROBATION_ROLLOUTS)

    def suspended(self, invite: str) -> str:
        """Return why an invite is suspended; empty if it is not."""
        record = self._invites.get(invite)
        return "" if record is None else record.convicted

    def suspends(self, peer_id: PeerId, invite: str) -> str:
        """Return why an identity gets no work because of its invite; empty if it may, or has proved itself."""
        record = self._records.get(peer_id)
        proved = record is not None and record.state == "good"
        reason = self.suspended(invite)
        return f"joined with a suspended invite: {reason}" if reason and not proved else ""

    def appeal(self, peer_id: PeerId, sampler: str) -> bool:
        """Judge a convicted identity anew that names another engine or device than the one that was judged, once.

        Its test goes on with the next window, so that its chance of a false accusation stays what it was. Returns
        False if it may not: it is not convicted, appealed before, names the same engine, or its invite is suspended.
        """
        record = self._records.get(peer_id)
        if record is None or not record.convicted or record.appeal or self.suspended(record.invite):
            return False
        if not sampler or sampler == record.sampler:
            return False
        self._records[peer_id] = AuditRecord(invite=record.invite, window=record.window + 1, appeal=sampler)
        return True

    def pardon(self, peer_id: PeerId, invite: str) -> None:
        """Forget what was found about an identity and its invite, because the operator enabled it."""
        record = self._records.pop(peer_id, None)
        self._invites.pop(invite or (record.invite if record is not None else ""), None)
        self._note_passed()

    def convicted(self) -> dict[PeerId, str]:
        """Return the convicted identities with the reason."""
        return {peer_id: one.convicted for peer_id, one in self._records.items() if one.convicted}

    def restore(self, event: AuditRestored) -> None:
        """Take over the book of an earlier coordinator."""
        saved = msgspec.json.decode(event.book_json, type=_Saved)
        self.step, self._records = Step(saved.step), {PeerId(one): record for one, record in saved.records.items()}
        self._invites = dict(saved.invites)
        self._note_passed()

    def to_json(self) -> str:
        """Return the book as JSON, which an AuditRestored holds."""
        records = {str(peer_id): record for peer_id, record in self._records.items()}
        return msgspec.json.encode(_Saved(self.step, records, self._invites)).decode()

    def _discard(self) -> None:
        for book in (self._records, self._invites):
            surplus = len(book) - RECORDS_MAX
            if surplus > 0:
                harmless = [key for key, record in book.items() if not record.convicted]
                for key in harmless[:surplus]:
                    del book[key]  # type: ignore[arg-type]


class _Saved(msgspec.Struct):
    step: int
    records: Mapping[str, AuditRecord]
    invites: Mapping[str, AuditRecord]
