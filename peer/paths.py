"""Which of a peer's addresses is dialled first: what opened before, then direct links, then libp2p. Decisions only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from peer.p2p.addresses import is_p2p_address
from rollcast.wire.ids import PeerId

_FORGOTTEN_AFTER_S = 300.0
"""A network changes: what failed is tried in its old place again after this long."""
_REMEMBERED_MOST = 4096
ADDRESSES_MOST = 4
"""Of one peer; more are not looked at."""


def addresses_in(text: str) -> tuple[str, ...]:
    """The addresses that a peer advertises: host:port and libp2p's after it, separated by spaces; all else is one."""
    first, *others = text.split(" ")
    if ("/" in first and not is_p2p_address(first)) or not all(map(is_p2p_address, others)):
        return (text,)  # a mirror's, whose path may hold spaces
    return tuple(dict.fromkeys((first, *others)))[:ADDRESSES_MOST]


@dataclass(slots=True)
class Paths:
    """What is known of the ways to each peer."""

    _failed_at_s: dict[tuple[PeerId, str], float] = field(default_factory=dict)

    def order(self, peer_id: PeerId, addresses: Sequence[str], now: float) -> list[str]:
        """The best first: those that did not fail lately, direct ones before libp2p's, which cost several times the
        processor (`python -m bench transports`); of those that failed, the one whose failure is longest ago."""

        def rank(address: str) -> tuple[float, bool]:
            failed_at_s = self._failed_at_s.get((peer_id, address))
            recent = failed_at_s is not None and now - failed_at_s < _FORGOTTEN_AFTER_S
            return (failed_at_s or 0.0) if recent else float("-inf"), is_p2p_address(address)

        return sorted(addresses, key=rank)

    def opened(self, peer_id: PeerId, address: str) -> None:
        """A link was opened there."""
        self._failed_at_s.pop((peer_id, address), None)

    def failed(self, peer_id: PeerId, address: str, now: float) -> None:
        """Nobody got through there."""
        self._failed_at_s.pop((peer_id, address), None)
        self._failed_at_s[peer_id, address] = now
        while len(self._failed_at_s) > _REMEMBERED_MOST:
            del self._failed_at_s[next(iter(self._failed_at_s))]  # the oldest
