"""Keep the pairs of members between which something failed; they pause for a while, longer each time. Pure.

There is one book for hole punches, and one for links that were given up because of wrong chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import PeerId

FIRST_PAUSE_S = 600.0
PAUSE_MAX_S = 6 * 3600.0
_REMEMBERED_MOST = 8192
_NO_PEERS: frozenset[PeerId] = frozenset()

Pair = tuple[PeerId, PeerId]


@dataclass(slots=True)
class _Failure:
    until: float
    pause_s: float


class FailedPairs:
    """Keeps failed pairs and their pauses. Times are the core's clock in seconds."""

    def __init__(self) -> None:
        self._failures: dict[Pair, _Failure] = {}  # the oldest first
        self._partners: dict[PeerId, set[PeerId]] = {}  # the same by member
        self._resting: dict[PeerId, frozenset[PeerId]] = {}
        self._next_end = float("inf")

    def of(self, peer_id: PeerId) -> frozenset[PeerId]:
        """Return the peers with which this member pauses."""
        return self._resting.get(peer_id, _NO_PEERS)

    def pause_left_s(self, one: PeerId, other: PeerId, now: float) -> float:
        """Return for how many seconds this pair still pauses; 0 if it may try."""
        failure = self._failures.get(pair_of(one, other))
        return 0.0 if failure is None else max(0.0, failure.until - now)

    def failed(self, one: PeerId, other: PeerId, now: float) -> None:
        """Note that a punch or link of this pair failed."""
        pair = pair_of(one, other)
        before = self._failures.pop(pair, None)
        if before is not None and before.until > now:  # the same failure, reported by the other end
            self._failures[pair] = before
            return
        pause_s = FIRST_PAUSE_S if before is None else min(PAUSE_MAX_S, 2 * before.pause_s)
        self._failures[pair] = _Failure(now + pause_s, pause_s)
        self._partners.setdefault(one, set()).add(other)
        self._partners.setdefault(other, set()).add(one)
        self._next_end = min(self._next_end, now + pause_s)
        self._rest(*pair)
        if len(self._failures) > _REMEMBERED_MOST:
            self._discard(next(iter(self._failures)))

    def succeeded(self, one: PeerId, other: PeerId) -> bool:
        """Note that a punch of this pair succeeded; returns whether the pair had failed before."""
        pair = pair_of(one, other)
        known = pair in self._failures
        if known:
            self._discard(pair)
        return known

    def forgive(self, peer_id: PeerId) -> None:
        """Discard the failures of a member that is at another place now."""
        for other in tuple(self._partners.get(peer_id, ())):
            self._discard(pair_of(peer_id, other))

    def tick(self, now: float) -> bool:
        """Return whether some pairs may retry from now on. The length of their pause is kept for as long again."""
        if now < self._next_end:
            return False
        freed = False
        self._next_end = float("inf")
        for pair, failure in list(self._failures.items()):
            if failure.until > now:
                self._next_end = min(self._next_end, failure.until)
                continue
            if pair[1] in self.of(pair[0]):
                freed = True
                self._wake(*pair)
            if failure.until + failure.pause_s <= now:
                self._discard(pair)
            else:
                self._next_end = min(self._next_end, failure.until + failure.pause_s)
        return freed

    def __len__(self) -> int:
        """Return the number of pairs that pause."""
        return sum(map(len, self._resting.values())) // 2

    def _discard(self, pair: Pair) -> None:
        del self._failures[pair]
        for a, b in (pair, pair[::-1]):
            self._partners[a].remove(b)
            if not self._partners[a]:
                del self._partners[a]
        self._wake(*pair)

    def _rest(self, one: PeerId, other: PeerId) -> None:
        for a, b in ((one, other), (other, one)):
            self._resting[a] = self.of(a) | {b}

    def _wake(self, one: PeerId, other: PeerId) -> None:
        for a, b in ((one, other), (other, one)):
            left = self.of(a) - {b}
            if left:
                self._resting[a] = left
            else:
                self._resting.pop(a, None)


def pair_of(one: PeerId, other: PeerId) -> Pair:
    """Return the pair in an order that is the same for both calls."""
    return (one, other) if one < other else (other, one)
