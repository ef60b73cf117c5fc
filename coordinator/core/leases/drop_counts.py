"""Keep counts that must add up: every issued slot is trained, a turn, open, or dropped for a counted reason (I11)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Literal

from coordinator.core.events.events import PeerFacts
from rollcast.runtime.windows import RecentIdentities
from rollcast.wire.ids import PeerId

DropReason = Literal[
    "lease_expired",  # no rollout before the deadline
    "peer_left",  # the peer sent Goodbye, or reconnected without the lease
    "returned",  # returned by the peer, or interrupted before its end
    "revoked",  # revoked by the coordinator, for example at quarantine
    "stale",  # older than the staleness limit allows
    "group_stale",  # a sibling was too old, and a group is trained as a whole
    "no_advantage",  # every rollout of its group has the same reward, and the run drops such groups
    "malformed",  # it claims something impossible
    "older_version",  # made with an older version than its lease allows
    "late_duplicate",  # another attempt at the same slot was first
    "rolled_back",  # made with a version that an epoch orphaned, or in flight when the epoch was opened
    "environment_failed",  # the environment of an episode in its group failed again and again
    "audit_failed",  # its peer was convicted by an audit before it was trained on
    "delivered",  # in a cell: the head has stored it, and decides what becomes of it
    "unscorable",  # a rollout of its group could not be scored: the verifier failed each time
    "run_ended",  # not needed any more
]

#: Reasons for which an attempt's duration so far is a lower bound of its full duration.
TOO_SLOW: frozenset[DropReason] = frozenset({"lease_expired", "stale", "group_stale", "late_duplicate"})

#: Reasons that lower what the attempt's peer may hold: nothing useful came of its lease.
LOST: frozenset[DropReason] = frozenset({"lease_expired", "malformed", "older_version"})

#: Reasons that do so too, if the attempt lasted longer than its peer's usually do.
OVERTAKEN: frozenset[DropReason] = frozenset({"group_stale", "late_duplicate"})

#: Why the attempt of a turn is closed when its episode goes on; it is counted as a turn, not as dropped.
NEXT_TURN = "next_turn"

RefusalReason = Literal[
    "malformed",  # no valid rollout, and not for a slot that its sender holds
    "fenced",  # not this peer's attempt, or an attempt that is over
    "late_duplicate",  # the attempt is over, and its slot needs no other
    "busy",  # too many rollouts wait to be scored; the same upload may come again
    "run_ended",
]


@dataclass(slots=True)
class RolloutAccounts:
    """Counts attempts by their outcome. ``accepted`` counts rollouts stored durably, whatever happened to them later.

    Uploads refused for an attempt that is already counted (fenced, duplicates) are counted separately, per upload.
    """

    issued: int = 0
    second_attempts: int = 0  # issued to a second peer because the first is slow, since the start
    accepted: int = 0
    trained: int = 0
    turns: int = 0  # attempts that made a turn of an episode which went on
    dropped: Counter[str] = field(default_factory=Counter)
    uploads_refused: Counter[str] = field(default_factory=Counter)

    @property
    def open(self) -> int:
        """Number of attempts that are neither trained nor dropped yet, and did not make a turn before the last."""
        return self.issued - self.trained - self.turns - self.dropped.total()


@dataclass(frozen=True, slots=True)
class TrafficTotals:
    """Sums of what peers counted, including peers that left, in chunk bytes and numbers of chunks or events."""

    from_origin: int = 0
    from_peers: int = 0
    rejected: int = 0  # chunks that did not match their signed hash
    duplicate: int = 0  # chunks received though held already
    hedged: int = 0  # chunks requested from a second source
    reparentings: int = 0
    delta_bytes_saved: int = 0
    addresses_refused: int = 0  # that peers would not dial


class ChunkTraffic:
    """Sums up the peers' own counters, which start at 0 with every process."""

    def __init__(self) -> None:
        self._sums = [0] * len(fields(TrafficTotals))
        self._last: RecentIdentities[PeerId, tuple[int, ...]] = RecentIdentities()

    def joined(self, members: int) -> None:
        """Remember the counters of this many members, and of as many that left and may come back."""
        self._last.make_room(members)

    def observe(self, peer_id: PeerId, facts: PeerFacts) -> None:
        """Add what happened at this peer since its last report."""
        counted = (
            *(facts.chunk_bytes_from_origin, facts.chunk_bytes_from_peers, facts.chunks_rejected),
            *(facts.chunks_duplicate, facts.chunks_hedged, facts.reparentings, facts.delta_bytes_saved),
            facts.addresses_refused,
        )
        before = self._last.get(peer_id)
        if counted == before:
            self._last.move_to_end(peer_id)
            return
        if before is None or any(now < then for now, then in zip(counted, before, strict=True)):
            before = (0,) * len(counted)  # a new process
        for index, (now, then) in enumerate(zip(counted, before, strict=True)):
            self._sums[index] += now - then
        self._last.use(peer_id, counted)

    @property
    def totals(self) -> TrafficTotals:
        """The sums, by name."""
        return TrafficTotals(*self._sums)

    @property
    def peer_share(self) -> float | None:
        """Share of chunk bytes that came from peers and not from the origin; None before the first byte."""
        totals = self.totals
        received = totals.from_origin + totals.from_peers
        return totals.from_peers / received if received else None
