"""Rank a peer's addresses for dialing, by measured rate, cost and recent failures. Decisions only.

An address has one of these forms; several addresses are separated by spaces:

    host:port                                               direct
    punch                                                   punched: both dial each other at the same time
    /ip4/192.0.2.1/tcp/4001                                 p2p: libp2p
    /ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER  relayed: libp2p through a third peer
    https://host/prefix, or a path                          mirror; always the only address
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from peer.links.addresses import is_circuit_address, is_p2p_address
from peer.links.rates import SLOW_SHARE
from peer.links.traffic import is_lan_address
from rollcast.wire.ids import PeerId
from rollcast.wire.reach_words import PUNCH

Kind = Literal["lan", "direct", "punched", "p2p", "relayed", "mirror"]
"""The kind of a link: the words of LinkReport.transport, and ``lan`` for a direct link within a local network."""

Key = TypeVar("Key")
Value = TypeVar("Value")
ADDRESSES_MOST = 8
"""Addresses of one peer that are considered; further ones are ignored."""
_FAILURE_EXPIRES_S = 300.0
"""Networks change: after this long an address that failed ranks as before the failure."""
_RATE_EXPIRES_S = 900.0
"""Networks change: after this long a measured rate no longer counts."""
_KEPT_MOST = 4096
# The value of a byte per second. libp2p costs two to three times the processor time of a direct link (`python -m bench
# transports`), a circuit also a third peer's link in both directions, and a punched hole must be kept open.
_VALUE: dict[Kind, float] = {"lan": 8.0, "direct": 4.0, "punched": 3.0, "p2p": 1.5, "relayed": 0.5, "mirror": 0.25}


def addresses_in(text: str) -> tuple[str, ...]:
    """Split a row of addresses at its spaces; a mirror's address stays whole, because its path may contain spaces."""
    parts = text.split(" ")
    if len(parts) == 1 or not all(map(is_peer_address, parts)):
        return (text,)
    return tuple(dict.fromkeys(parts))[:ADDRESSES_MOST]


def kind_of(address: str) -> Kind:
    """Return the kind that a link to this address would have."""
    if address == PUNCH:
        return "punched"
    if is_p2p_address(address):
        return "relayed" if is_circuit_address(address) else "p2p"
    if "/" in address:  # never in host:port, always in https://host/prefix or a path
        return "mirror"
    return "lan" if is_lan_address(address.rpartition(":")[0].strip("[]")) else "direct"


def kind_of_link(transport: str, lan: bool) -> Kind:
    """Return the kind of an open link.

    Args:
        transport: as in ``Link.transport``.
    """
    match transport:
        case "direct":
            return "lan" if lan else "direct"
        case "punched" | "p2p" | "relayed":
            return transport
        case _:
            return "mirror"


def is_peer_address(address: str) -> bool:
    """Return whether it can be the address of a peer, and not part of a mirror's."""
    if address == PUNCH or is_p2p_address(address):
        return True
    host, _, port = address.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal()


@dataclass(slots=True)
class Paths:
    """Keeps failures, measured rates and further addresses of each peer, and ranks addresses by them."""

    _failed_at_s: dict[tuple[PeerId, str], float] = field(default_factory=dict)
    _measured: dict[tuple[PeerId, Kind], tuple[float, float]] = field(default_factory=dict)  # bytes per second, when
    _fastest_before: dict[PeerId, tuple[float, float]] = field(default_factory=dict)  # a link became slow; when
    _learned: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)

    def order(self, peer_id: PeerId, addresses: Sequence[str], now: float) -> list[str]:
        """Return the addresses, those learned elsewhere included, the best first.

        Addresses that failed lately come after all others, the one whose failure is longest ago first.
        """

        def rank(address: str) -> tuple[float, float]:
            failed_at_s = self._failed_at_s.get((peer_id, address))
            recent = failed_at_s is not None and now - failed_at_s < _FAILURE_EXPIRES_S
            return (failed_at_s or 0.0) if recent else float("-inf"), -self._value(peer_id, kind_of(address), now)

        return sorted(self._with_learned(peer_id, addresses), key=rank)

    def better(self, peer_id: PeerId, addresses: Sequence[str], than: Kind, now: float) -> list[str]:
        """Return the addresses that would make a better link than one of kind ``than``, the best first.

        Addresses that failed are included: ``transports.upgrades`` decides how often they are retried.
        """
        value = self._value(peer_id, than, now)
        found = [
            one for one in self._with_learned(peer_id, addresses) if self._value(peer_id, kind_of(one), now) > value
        ]
        return sorted(found, key=lambda one: -self._value(peer_id, kind_of(one), now))

    def learn(self, peer_id: PeerId, addresses: Sequence[str]) -> None:
        """Replace the addresses of a peer that come from elsewhere than the plan."""
        _keep(self._learned, peer_id, tuple(one for one in addresses if is_peer_address(one))[:ADDRESSES_MOST])

    def opened(self, peer_id: PeerId, address: str) -> None:
        """Note that a link was opened at an address, which clears its failure."""
        self._failed_at_s.pop((peer_id, address), None)

    def failed(self, peer_id: PeerId, address: str, now: float) -> None:
        """Note that a dial to an address failed."""
        _keep(self._failed_at_s, (peer_id, address), now)

    def measured(self, peer_id: PeerId, kind: Kind, bytes_per_second: float, now: float) -> None:
        """Note the rate of a busy link. The highest counts, because a link gets less while others share the uplink."""
        if bytes_per_second >= self.rate(peer_id, kind, now):
            _keep(self._measured, (peer_id, kind), (bytes_per_second, now))

    def slowed(self, peer_id: PeerId, kind: Kind, now: float) -> None:
        """Note that a link of a kind has become far slower than before: its rate counts for a tenth from now on."""
        if rate := self.rate(peer_id, kind, now):
            _keep(self._fastest_before, peer_id, (self._fastest(peer_id, now), now))
            _keep(self._measured, (peer_id, kind), (SLOW_SHARE * rate, now))

    def rate(self, peer_id: PeerId, kind: Kind, now: float) -> float:
        """Return the most bytes per second that were measured lately; 0 if there were none."""
        bytes_per_second, measured_at_s = self._measured.get((peer_id, kind), (0.0, 0.0))
        return bytes_per_second if now - measured_at_s < _RATE_EXPIRES_S else 0.0

    def _value(self, peer_id: PeerId, kind: Kind, now: float) -> float:
        """Return the value of a link of a kind.

        A kind that was not measured counts as fast as the fastest one that was, so that it is tried, the cheapest
        first; also if that one has become slow since.
        """
        return (self.rate(peer_id, kind, now) or self._fastest(peer_id, now) or 1.0) * _VALUE[kind]

    def _fastest(self, peer_id: PeerId, now: float) -> float:
        before, became_slow_at_s = self._fastest_before.get(peer_id, (0.0, float("-inf")))
        measured = max(self.rate(peer_id, kind, now) for kind in _VALUE)
        return max(measured, before if now - became_slow_at_s < _RATE_EXPIRES_S else 0.0)

    def _with_learned(self, peer_id: PeerId, addresses: Sequence[str]) -> list[str]:
        known = [one for one in addresses if one]
        if any(kind_of(one) == "mirror" for one in known):
            return known
        return list(dict.fromkeys((*known, *self._learned.get(peer_id, ()))))[: 2 * ADDRESSES_MOST]


def _keep(known: dict[Key, Value], key: Key, value: Value) -> None:
    """Store a value as the newest, and discard the oldest ones beyond the bound."""
    known.pop(key, None)
    known[key] = value
    while len(known) > _KEPT_MOST:
        del known[next(iter(known))]
