"""Attempts of peers that are away: still theirs until the deadline, and open to somebody else after a short grace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.core.leases.groups import AttemptKey
from rollcast.wire.ids import LeaseId, PeerId


@dataclass(slots=True)
class _Grace:
    until: float
    attempts: set[AttemptKey]


@dataclass(slots=True)
class _Earlier:
    """Live attempts of a peer from before its present session: those of leases up to ``ids_before``."""

    ids_before: LeaseId
    count: int


class Away:
    """Which live attempts belong to a peer that is away, since when, and which are of an earlier session.

    Times are the core's clock in seconds.
    """

    def __init__(self) -> None:
        self._grace: OrderedDict[PeerId, _Grace] = OrderedDict()  # soonest over first
        self._lost_by_peer: dict[PeerId, set[AttemptKey]] = {}
        self._earlier: dict[PeerId, _Earlier] = {}
        self.lost: set[AttemptKey] = set()  # a second attempt is wanted

    def left(self, peer_id: PeerId, attempts: Iterable[AttemptKey], until: float) -> None:
        """The peer went away with these attempts; they are lost at ``until``, which must never fall between calls."""
        self._grace.pop(peer_id, None)
        keys = set(attempts) - self.lost
        if keys:
            self._grace[peer_id] = _Grace(until, keys)

    def due(self, now: float) -> set[AttemptKey]:
        """Attempts that are lost from now on, and were not before."""
        found: set[AttemptKey] = set()
        while self._grace and next(iter(self._grace.values())).until <= now:
            peer_id, grace = self._grace.popitem(last=False)
            self._lost_by_peer.setdefault(peer_id, set()).update(grace.attempts)
            found |= grace.attempts
        self.lost |= found
        return found

    def came_back(self, peer_id: PeerId, attempts: int, ids_before: LeaseId) -> set[AttemptKey]:
        """The peer is here again, with so many live attempts of leases up to this one. Returns those found again."""
        self._grace.pop(peer_id, None)
        self._earlier.pop(peer_id, None)
        found = self._lost_by_peer.pop(peer_id, set())
        self.lost -= found
        if attempts:
            self._earlier[peer_id] = _Earlier(ids_before, attempts)
        return found

    def ended(self, peer_id: PeerId, key: AttemptKey) -> None:
        """An attempt is not live any more."""
        grace, lost, earlier = self._grace.get(peer_id), self._lost_by_peer.get(peer_id), self._earlier.get(peer_id)
        self.lost.discard(key)
        if grace is not None:
            grace.attempts.discard(key)
            if not grace.attempts:
                del self._grace[peer_id]
        if lost is not None:
            lost.discard(key)
            if not lost:
                del self._lost_by_peer[peer_id]
        if earlier is not None and key[0] <= earlier.ids_before:
            earlier.count -= 1
            if not earlier.count:
                del self._earlier[peer_id]

    def earlier(self, peer_id: PeerId) -> int:
        """Live attempts of the peer from before its present session."""
        earlier = self._earlier.get(peer_id)
        return 0 if earlier is None else earlier.count

    def validate(self, live: Mapping[PeerId, Mapping[AttemptKey, object]]) -> None:
        """Raise AssertionError unless everything here is about live attempts."""
        for peer_id, grace in self._grace.items():
            assert grace.attempts <= live[peer_id].keys(), "an attempt that is over is waited for"
        for peer_id, lost in self._lost_by_peer.items():
            assert lost <= live[peer_id].keys(), "an attempt that is over is lost"
        assert self.lost == {key for lost in self._lost_by_peer.values() for key in lost}, "lost attempts"
        for peer_id, earlier in self._earlier.items():
            assert earlier.count == sum(key[0] <= earlier.ids_before for key in live[peer_id]), "earlier attempts"
