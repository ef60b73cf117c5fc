"""What a relay grants to others: reservations of peers that nobody can dial, and circuits to them. Decisions only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from rollcast.wire.ids import PeerId

RESERVATION_S = 600.0
"""A reservation ends after this long unless it is renewed; it ends with the connection too."""


class Answer(IntEnum):
    """To a request: the numbers of circuit relay v2 (specs/relay/circuit-v2.md of libp2p, section Status codes)."""

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
    """What a peer's owner lets it pass on for others.

    Args:
        circuits_most: open at a time; as many peers again may hold a reservation, four for each circuit.
        bytes_per_second: of all circuits together.
        circuit_bytes, circuit_s: after which one circuit ends; its ends may open another.
    """

    circuits_most: int = 8
    bytes_per_second: float = 50e6 / 8
    circuit_bytes: int = 16 << 30
    circuit_s: float = 7200.0

    @property
    def reservations_most(self) -> int:
        """Most peers do not use theirs most of the time."""
        return 4 * self.circuits_most


@dataclass(slots=True)
class CircuitBook:
    """Of one relay.

    Args:
        open: whether anything is granted at the moment.
    """

    caps: CircuitCaps
    open: bool = True
    _expires_at_s: dict[PeerId, float] = field(default_factory=dict)
    _circuits: int = 0
    _by_source: dict[PeerId, int] = field(default_factory=dict)

    def reserve(self, peer_id: PeerId, now: float) -> Answer:
        """A peer wants to be reached through us, or still does."""
        self._forget(now)
        full = len(self._expires_at_s) >= self.caps.reservations_most and peer_id not in self._expires_at_s
        if not self.open or full:
            return Answer.RESERVATION_REFUSED
        self._expires_at_s[peer_id] = now + RESERVATION_S
        return Answer.OK

    def holds(self, peer_id: PeerId, now: float) -> bool:
        """Whether it holds a reservation."""
        self._forget(now)
        return peer_id in self._expires_at_s

    def left(self, peer_id: PeerId) -> None:
        """Its connection ended, and its reservation with it."""
        self._expires_at_s.pop(peer_id, None)

    def connect(self, source: PeerId, target: PeerId, now: float) -> Answer:
        """One peer wants a circuit to another. Where it is OK, ``ended`` must follow."""
        if not self.holds(target, now) or source == target:
            return Answer.NO_RESERVATION
        mine = self._by_source.get(source, 0)
        # Nobody takes more than half: the last ones are for somebody else.
        if not self.open or self._circuits >= self.caps.circuits_most or mine >= max(1, self.caps.circuits_most // 2):
            return Answer.RESOURCE_LIMIT_EXCEEDED
        self._circuits += 1
        self._by_source[source] = mine + 1
        return Answer.OK

    def ended(self, source: PeerId) -> None:
        """A circuit that was granted is over, or never came about."""
        self._circuits -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]

    @property
    def circuits(self) -> int:
        """Open now."""
        return self._circuits

    @property
    def reservations(self) -> int:
        """Held, some of which may have run out."""
        return len(self._expires_at_s)

    def _forget(self, now: float) -> None:
        for peer_id in [peer_id for peer_id, at_s in self._expires_at_s.items() if at_s <= now]:
            del self._expires_at_s[peer_id]
