"""Counts that must add up: every issued slot is trained, open, or dropped for a counted reason (I11)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from coordinator.events import PeerFacts
from rollcast.wire.ids import PeerId

DropReason = Literal[
    "lease_expired",  # no rollout before the deadline
    "peer_left",  # its session ended or fell silent
    "returned",  # handed back by the peer, or interrupted half way
    "revoked",  # taken away, for example at quarantine
    "stale",  # older than the staleness limit allows
    "group_stale",  # a sibling was too old, and a group is trained as a whole
    "malformed",  # claims what cannot be
    "late_duplicate",  # another attempt at the same slot was first
    "run_ended",  # not needed any more
]

RefusalReason = Literal[
    "malformed",  # no rollout at all, and not for a slot that its sender holds
    "fenced",  # not this peer's attempt, or one that is over
    "late_duplicate",  # over, and its slot needs nothing more
    "busy",  # too many rollouts wait to be scored; the same upload may come again
    "run_ended",
]


@dataclass(slots=True)
class RolloutAccounts:
    """Attempts by what became of them. ``accepted`` counts rollouts stored durably, whatever came after.

    Uploads refused for an attempt that is already counted (fenced, duplicates) are counted apart, per upload.
    """

    issued: int = 0
    accepted: int = 0
    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    uploads_refused: Counter[str] = field(default_factory=Counter)

    @property
    def open(self) -> int:
        """Attempts that are neither trained nor dropped yet."""
        return self.issued - self.trained - self.dropped.total()


_IDENTITIES_KEPT = 4096  # identities whose last counters are remembered, to tell a restart from a return


@dataclass(slots=True)
class ChunkTraffic:
    """Chunk bytes received by all peers, from their own counters, which start at 0 with every process."""

    from_origin: int = 0
    from_peers: int = 0
    _last: OrderedDict[PeerId, tuple[int, int]] = field(default_factory=OrderedDict)

    def observe(self, peer_id: PeerId, facts: PeerFacts) -> None:
        """Add what this peer received since its last report."""
        origin_before, peers_before = self._last.pop(peer_id, (0, 0))
        origin_now, peers_now = facts.chunk_bytes_from_origin, facts.chunk_bytes_from_peers
        if origin_now < origin_before or peers_now < peers_before:  # the process was restarted
            origin_before = peers_before = 0
        self.from_origin += origin_now - origin_before
        self.from_peers += peers_now - peers_before
        self._last[peer_id] = (origin_now, peers_now)
        while len(self._last) > _IDENTITIES_KEPT:
            self._last.popitem(last=False)

    @property
    def peer_share(self) -> float | None:
        """Share of chunk bytes that came from peers rather than the origin; None before the first byte."""
        total = self.from_origin + self.from_peers
        return self.from_peers / total if total else None
