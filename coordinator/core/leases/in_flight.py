"""Index the attempts in flight of a book of leases: by lease and sample, by peer, and by deadline.

The book of training's leases and that of evaluations are built on it: expiry and revocation follow the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from coordinator.core.events.actions import Action, RevokeLeases
from coordinator.core.leases.attempts import AttemptKey
from rollcast.wire.ids import LeaseId, PeerId


class _Attempt(Protocol):
    @property
    def key(self) -> AttemptKey: ...
    @property
    def lease_id(self) -> LeaseId: ...
    @property
    def peer_id(self) -> PeerId: ...
    @property
    def deadline(self) -> float: ...


AttemptT = TypeVar("AttemptT", bound=_Attempt)


class LeaseClock:
    """The time by which leases expire: it stands still while uploads are refused, which is not the peers' fault."""

    def __init__(self) -> None:
        self._stands_since: float | None = None
        self._stood_s = 0.0

    def tick(self, now: float, *, stands: bool) -> None:
        """Let it stand still from now on, or go on."""
        if self._stands_since is not None:
            self._stood_s += now - self._stands_since
        self._stands_since = now if stands else None

    def at(self, now: float) -> float:
        """Return the time of this clock, in seconds."""
        return (now if self._stands_since is None else self._stands_since) - self._stood_s


_OVER_MAX = 64  # attempts that are over and still in the order of deadlines, beyond as many as are in flight


class InFlight(Generic[AttemptT]):
    """Index the attempts in flight of one book. Deadlines are on the clock of leases."""

    def __init__(self) -> None:
        self._live: dict[AttemptKey, AttemptT] = {}  # in order of issue
        self._live_by_peer: dict[PeerId, dict[AttemptKey, AttemptT]] = {}
        self._deadlines: list[tuple[float, int, AttemptKey]] = []  # a heap of deadline and order of issue
        self._issued = 0

    @property
    def live_count(self) -> int:
        """Number of attempts that are in flight."""
        return len(self._live)

    def live_attempt(self, key: AttemptKey) -> AttemptT | None:
        """Return the attempt if it is in flight."""
        return self._live.get(key)

    def held_by(self, peer_id: PeerId) -> list[AttemptT]:
        """Return the peer's attempts in flight, oldest first."""
        return list(self._live_by_peer.get(peer_id, {}).values())

    def holds_lease(self, peer_id: PeerId, lease_id: LeaseId) -> bool:
        """Whether some attempt of this lease is in flight."""
        return any(key[0] == lease_id for key in self._live_by_peer.get(peer_id, ()))

    def expired(self, now: float) -> list[AttemptT]:
        """Return the attempts in flight whose deadline has passed, the one that passed first first.

        Each is returned once: the caller ends it.
        """
        late: list[AttemptT] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            attempt = self._live.get(heappop(self._deadlines)[2])
            if attempt is not None:
                late.append(attempt)
        return late

    def revocations(self, closed: Iterable[AttemptT], reason: str) -> list[Action]:
        """Return the orders to stop working on the leases of closed attempts, unless their other slots continue."""
        leases: dict[PeerId, dict[LeaseId, None]] = {}
        for attempt in closed:
            if not self.holds_lease(attempt.peer_id, attempt.lease_id):
                leases.setdefault(attempt.peer_id, {})[attempt.lease_id] = None
        return [RevokeLeases(peer_id, tuple(ids), reason) for peer_id, ids in leases.items()]

    def _begin_live(self, attempt: AttemptT) -> None:
        self._live[attempt.key] = attempt
        self._live_by_peer.setdefault(attempt.peer_id, {})[attempt.key] = attempt
        self._issued += 1
        heappush(self._deadlines, (attempt.deadline, self._issued, attempt.key))
        if len(self._deadlines) > 2 * len(self._live) + _OVER_MAX:
            self._deadlines = [one for one in self._deadlines if one[2] in self._live]
            heapify(self._deadlines)

    def _end_live(self, attempt: AttemptT) -> None:
        del self._live[attempt.key]
        held = self._live_by_peer[attempt.peer_id]
        del held[attempt.key]
        if not held:
            del self._live_by_peer[attempt.peer_id]

    def _validate_live(self, live: Set[AttemptKey]) -> None:
        """Raise AssertionError unless exactly these attempts are in flight."""
        assert live == self._live.keys(), "live attempts"
        assert all(self._live_by_peer.values()), "a peer without attempts"
        held = [key for held in self._live_by_peer.values() for key in held]
        assert len(held) == len(live), "attempts by peer"
        assert live == set(held), "attempts by peer"
        assert live <= {key for _, _, key in self._deadlines}, "an attempt that never expires"
