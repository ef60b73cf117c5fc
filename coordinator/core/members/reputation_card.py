"""Describe the reputation of a peer, or of all peers of an invite: what was found, what is done, how to undo it. Pure.

A reputation is ``good``, ``probation`` (few rollouts were judged yet), ``watched`` (a token was beyond its bound) or
``quarantined``; an operator's ban comes before all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coordinator.core.events.audit_events import AuditRestored
from coordinator.core.members.audit_book import PROBATION_ROLLOUTS, AuditBook, AuditRecord
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

State = Literal["good", "probation", "watched", "quarantined", "banned"]

_APPEAL = "if it runs another engine now, enable it: everything that it sends is judged anew"
_APPEALS_ITSELF = "; once it appeals itself, by joining with another engine or device"


@dataclass(frozen=True, slots=True)
class Card:
    """The reputation of a peer or an invite.

    Args:
        id: of the peer or the invite. ``name``: the peer's; empty for an invite.
        because: why it is not good; empty if it is.
        rollouts, tokens: judged. ``off``: tokens beyond the bound. ``left_out``: rollouts with one, not trained on.
        trained: judged rollouts that were trained on.
        worst_nats: the largest margin, of token ``worst_at`` of the completion of ``worst_rollout``; ``floor_nats``: an
            honest one's highest. ``sampler``: engine and device that the peer claims.
        act: what the coordinator does about it. ``undo``: what an operator can do; empty if there is nothing to undo.
    """

    kind: Literal["peer", "invite"]
    id: str
    name: str
    state: State
    because: str
    rollouts: int
    tokens: int
    off: int
    left_out: int
    trained: int
    floor_nats: float
    worst_nats: float
    worst_rollout: int
    worst_at: int
    sampler: str
    act: str
    undo: str

    def facts(self) -> dict[str, Any]:
        """Return the card in words, for people."""
        off = f"{self.off:,} of {self.tokens:,} tokens in {self.rollouts:,} rollouts"
        worst = f"{self.worst_nats:.3g} nats beyond it, token {self.worst_at} of rollout {self.worst_rollout}"
        bound = f"{self.floor_nats:.3g} nats, the most that an honest {self.sampler or 'engine'} deviates"
        found = {
            "reputation": f"{self.state}: {self.because}" if self.because else self.state,
            "audited": f"{self.tokens:,} tokens in {self.rollouts:,} rollouts",
            "tokens beyond the bound": off if self.off else "none",
            "bound": bound if self.tokens else "",
            "worst token": worst if self.off else "",
            "trained on": f"{self.trained:,} of the audited rollouts, {self.left_out:,} left out",
            "what the coordinator does": self.act,
            "to undo": self.undo,
        }
        return {name: text for name, text in found.items() if text}


def card_of_peer(
    record: AuditRecord | None, peer_id: str, name: str, *, banned: str, quarantined: str, share_audited: float
) -> Card:
    """Return a peer's card.

    Args:
        record: what was found about it; None if nothing was judged.
        banned, quarantined: why it is; empty if it is not.
        share_audited: of its rollouts that are not trained on, the share that is judged.
    """
    found = AuditRecord() if record is None else record
    state = _state_of(found)
    because = found.convicted
    act = f"audits all its rollouts that are trained on, and {share_audited:.0%} of the others"
    undo = ""
    if banned or quarantined:
        state, because = ("banned", banned) if banned else ("quarantined", quarantined)
        act = "gives it no work; what it uploaded and no batch holds was dropped"
        undo = f"rollcast workers enable {name or peer_id}; {_APPEAL}"
        if found.convicted and not found.appeal and not banned:
            undo += _APPEALS_ITSELF
    elif state == "watched":
        tokens = "1 token" if found.beyond == 1 else f"{found.beyond} tokens"
        because = f"{tokens} beyond the bound, too few to convict"
        act = f"{act}; its rollouts with such a token are left out"
    elif state == "probation":
        because = f"{found.rollouts} of the first {PROBATION_ROLLOUTS} rollouts judged"
        if found.appeal:
            because += f" since it appealed with {found.appeal}"
    return _card("peer", peer_id, name, state, because, found, act, undo)


def _state_of(found: AuditRecord) -> State:
    state = found.state
    return "quarantined" if state == "convicted" else state


def verdict_of(card: Card, *, of_member: bool = False) -> pb.CoordinatorMessage:
    """Return the message that reports a peer's card to its owner, or with ``of_member`` to the cell that it is in."""
    verdict = pb.AuditVerdict(
        state=card.state, reason=card.because, rollouts=card.rollouts, left_out=card.left_out, sampler=card.sampler
    )
    if of_member:
        verdict.peer_id = card.id
    if card.off:
        verdict.rollout_id, verdict.token_at = card.worst_rollout, card.worst_at
        verdict.margin_nats, verdict.bound_nats = card.worst_nats, card.floor_nats
    return pb.CoordinatorMessage(audit_verdict=verdict)


def card_of_invite(record: AuditRecord | None, invite_id: str, *, on_probation: bool) -> Card:
    """Return an invite's card; ``on_probation``: whether its peers share a small allowance because of it."""
    found = AuditRecord() if record is None else record
    if found.convicted:
        act = "gives its peers no work, except those with 20 judged rollouts and no token beyond the bound"
        undo = f"rollcast invite enable {invite_id}"
        return _card("invite", invite_id, "", "quarantined", found.convicted, found, act, undo)
    state = _state_of(found)
    act = "limits its peers together to a tenth of a batch at once" if on_probation else "sets no further limit"
    because = f"{found.rollouts} of the first {PROBATION_ROLLOUTS} rollouts judged" if state == "probation" else ""
    return _card("invite", invite_id, "", state, because, found, act, "")


def _card(
    kind: Literal["peer", "invite"],
    id_: str,
    name: str,
    state: State,
    because: str,
    found: AuditRecord,
    act: str,
    undo: str,
) -> Card:
    return Card(
        kind=kind,
        id=id_,
        name=name,
        state=state,
        because=because,
        rollouts=found.rollouts,
        tokens=found.tokens,
        off=found.beyond,
        left_out=found.left_out,
        trained=found.trained,
        floor_nats=found.bound_nats,
        worst_nats=found.worst_nats,
        worst_rollout=found.worst_rollout,
        worst_at=found.worst_at,
        sampler=found.sampler,
        act=act,
        undo=undo,
    )


def facts_of_saved(book_json: str, peer_id: str) -> dict[str, Any]:
    """Return in words what a ledger's audit book says of a peer; empty if nothing. Bans are among its events."""
    book = AuditBook()
    book.restore(AuditRestored(book_json))
    record = book.record(PeerId(peer_id))
    if record is None:
        return {}
    share = book.share_audited(PeerId(peer_id), record.invite)
    named = card_of_peer(record, peer_id, "", banned="", quarantined=record.convicted, share_audited=share)
    return named.facts()
