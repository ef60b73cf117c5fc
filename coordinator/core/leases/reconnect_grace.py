"""Keep the attempts of peers that are away: theirs until the deadline, and open to other peers after a short grace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.core.leases.attempts import AttemptKey
from rollcast.wire.ids import PeerId


@dataclass(slots=True)
class _Grace:
    until: float
    attempts: set[AttemptKey]


class ReconnectGrace:
    """Tracks which live attempts belong to a peer that is away, until when, and which are of an earlier session.

    Times are the core's clock in seconds.
    """

    def __init__(self) -> None:
        self._grace: OrderedDict[PeerId, _Grace] = OrderedDict()  # the one that ends first is first
        self._lost_by_peer: dict[PeerId, set[AttemptKey]] = {}
        self.lost: set[AttemptKey] = set()
        """Attempts whose slots need a second attempt, because their peers have been away for too long."""
        self.earlier: dict[PeerId, set[AttemptKey]] = {}
        """Live attempts of peers from before their present session."""
        self.attempts: set[AttemptKey] = set()
        """Every attempt that is tracked here; most never are, because their peers stay connected."""

    def left(self, peer_id: PeerId, attempts: Iterable[AttemptKey], until: float) -> None:
        """Begin the grace of a peer that left with these attempts; they are lost at ``until``.

        ``until`` must not decrease from one call to the next, because graces are assumed to end in the order of calls.
        """
        self._grace.pop(peer_id, None)
        keys = set(attempts) - self.lost
        if keys:
            self._grace[peer_id] = _Grace(until, keys)
            self.attempts |= keys

    def due(self, now: float) -> set[AttemptKey]:
        """Return the attempts that are lost from now on, and were not before."""
        found: set[AttemptKey] = set()
        while self._grace and next(iter(self._grace.values())).until <= now:
            peer_id, grace = self._grace.popitem(last=False)
            self._lost_by_peer.setdefault(peer_id, set()).update(grace.attempts)
            found |= grace.attempts
        self.lost |= found
        return found

    def reconnected(self, peer_id: PeerId, attempts: Iterable[AttemptKey]) -> set[AttemptKey]:
        """Return its live attempts to a peer that reconnected. Returns those that were lost."""
        self._grace.pop(peer_id, None)
        self.earlier.pop(peer_id, None)
        found = self._lost_by_peer.pop(peer_id, set())
        self.lost -= found
        held = set(attempts)
        if held:
            self.earlier[peer_id] = held
            self.attempts |= held
        return found

    def ended(self, peer_id: PeerId, key: AttemptKey) -> None:
        """Discard an attempt that is not live any more."""
        self.attempts.discard(key)
        self.lost.discard(key)
        grace = self._grace.get(peer_id)
        if grace is not None:
            grace.attempts.discard(key)
            if not grace.attempts:
                del self._grace[peer_id]
        for by_peer in (self._lost_by_peer, self.earlier):
            keys = by_peer.get(peer_id)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del by_peer[peer_id]

    def validate(self, live: Mapping[PeerId, Mapping[AttemptKey, object]]) -> None:
        """Raise AssertionError unless every tracked attempt is live."""
        known: set[AttemptKey] = set()
        graces = {peer_id: grace.attempts for peer_id, grace in self._grace.items()}
        for by_peer in (graces, self._lost_by_peer, self.earlier):
            for peer_id, keys in by_peer.items():
                assert keys <= live[peer_id].keys(), "an attempt that is over is still known"
                known |= keys
        assert self.attempts == known, "attempts that are known"
        assert self.lost == {key for lost in self._lost_by_peer.values() for key in lost}, "lost attempts"
