"""Define what the learner finds out about rollouts, and what a restarted coordinator remembers of it, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import PeerId, RolloutId, Version
from rollcast.wire.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class RolloutAudit:
    """What the tokens of one peer in one trained rollout gave (learner.alignment.audit)."""

    rollout_id: RolloutId
    peer_id: PeerId
    tokens: int  # judged
    beyond: int  # of these, with a margin beyond the bound of an honest sampler
    far: int  # of these, so far beyond it that no rounding explains it
    worst_nats: float
    bound_nats: float
    worst_at: int  # index of the token with the largest margin in the completion
    sampler: str = ""  # that the peer claims
    trained: bool = False  # whether the rollout was trained on


@dataclass(frozen=True, slots=True)
class Unseen:
    """A rollout that is not trained on, for the learner to judge all the same (coordinator.core.members.audit_queue).

    ``evaluated``: the rollout itself with its prompt and seed if the ledger does not have it, as of an evaluation.
    """

    rollout_id: RolloutId
    peer_id: PeerId
    oldest_version: Version
    evaluated: tuple[tuple[int, ...], int, Rollout] | None = None


@dataclass(frozen=True, slots=True)
class AuditRestored:
    """The findings of an earlier coordinator, as coordinator.core.members.audit_book.AuditBook.to_json wrote them."""

    book_json: str
