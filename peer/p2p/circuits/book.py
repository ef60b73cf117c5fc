"""Decide which reservations of peers that cannot be dialled, and circuits to them, a relay grants. Decisions only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from rollcast.wire.ids import PeerId

RESERVATION_S = 600.0
"""Seconds after which a reservation ends unless it is renewed; it also ends with its connection."""


class Answer(IntEnum):
    """A relay's answer to a request: a status code of circuit relay v2 (libp2p's specs/relay/circuit-v2.md)."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


@dataclass(frozen=True, slots=True)
class CircuitCaps:
    """The owner's limits on what a peer passes on for others.

    Args:
        circuits_most: circuits that may be open at the same time; four times as many peers may hold a reservation.
        bytes_per_second: rate of all circuits together.
        circuit_bytes, circuit_s: bytes and seconds after which one circuit ends; its ends may open another.
    """

    circuits_most: int = 8
    bytes_per_second: float = 50e6 / 8
    circuit_bytes: int = 16 << 30
    circuit_s: float = 7200.0

    @property
    def reservations_most(self) -> int:
        """Return how many peers may hold a reservation: four per circuit, since most use theirs rarely."""
        return 4 * self.circuits_most


@dataclass(slots=True)
class CircuitBook:
    """The reservations and circuits that one relay has granted.

    Args:
        caps: the owner's limits.
        open: whether anything is granted at the moment.
    """

    caps: CircuitCaps
    open: bool = True
    _expires_at_s: dict[PeerId, float] = field(default_factory=dict)
    _circuits: int = 0
    _by_source: dict[PeerId, int] = field(default_factory=dict)

    def reserve(self, peer_id: PeerId, now: float) -> Answer:
        """Grant, renew or refuse the reservation of a peer that wants to be reached through this relay."""
        self._discard_expired(now)
        full = len(self._expires_at_s) >= self.caps.reservations_most and peer_id not in self._expires_at_s
        if not self.open or full:
            return Answer.RESERVATION_REFUSED
        self._expires_at_s[peer_id] = now + RESERVATION_S
        return Answer.OK

    def holds(self, peer_id: PeerId, now: float) -> bool:
        """Return whether the peer holds a reservation that has not expired."""
        self._discard_expired(now)
        return peer_id in self._expires_at_s

    def left(self, peer_id: PeerId) -> None:
        """End the reservation of a peer whose connection ended."""
        self._expires_at_s.pop(peer_id, None)

    def connect(self, source: PeerId, target: PeerId, now: float) -> Answer:
        """Grant or refuse a circuit from ``source`` to ``target``; after OK, the caller must call ``ended``."""
        if not self.holds(target, now) or source == target:
            return Answer.NO_RESERVATION
        mine = self._by_source.get(source, 0)
        # No source gets more than half of the circuits, so that one peer cannot shut out all others.
        if not self.open or self._circuits >= self.caps.circuits_most or mine >= max(1, self.caps.circuits_most // 2):
            return Answer.RESOURCE_LIMIT_EXCEEDED
        self._circuits += 1
        self._by_source[source] = mine + 1
        return Answer.OK

    def ended(self, source: PeerId) -> None:
        """Release a granted circuit that is over or never came about."""
        self._circuits -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]

    @property
    def circuits(self) -> int:
        """Return how many circuits are open now."""
        return self._circuits

    @property
    def reservations(self) -> int:
        """Return how many reservations are recorded, some of which may have expired."""
        return len(self._expires_at_s)

    def _discard_expired(self, now: float) -> None:
        for peer_id in [peer_id for peer_id, at_s in self._expires_at_s.items() if at_s <= now]:
            del self._expires_at_s[peer_id]
