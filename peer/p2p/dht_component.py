"""Seed the members' distributed hash table (DHT), keep this peer's entry in it fresh, and report the peers it names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from peer.links.addresses import is_circuit_address, is_p2p_address
from peer.p2p.transport import P2pTransport
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

LOOK_S = 15.0
SEEDS_MOST = 16


class DhtComponent:
    """The search for members in the DHT, a connectivity component (peer.connect.connectivity).

    Args:
        seeds: libp2p addresses with /p2p/ID of hosts to start from, besides the known ones.
        known: returns the peers known now, each with its addresses separated by spaces.
        own: returns this peer's addresses as known now.
        found: called with a peer and its addresses; they are a hint, not verified.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(
        self,
        transport: P2pTransport,
        seeds: Iterable[str],
        *,
        known: Callable[[], Iterable[tuple[PeerId, str]]],
        own: Callable[[], Iterable[str]],
        found: Callable[[PeerId, tuple[str, ...]], None],
    ) -> None:
        self._transport = transport
        self._seeds = tuple(seeds)
        self._known = known
        self._own = own
        transport.on_found = found

    async def run(self) -> None:
        """Update seeds and own addresses every LOOK_S seconds until cancelled."""
        while True:
            seeds = (*self._seeds, *libp2p_hosts(self._known()))[:SEEDS_MOST]
            self._transport.seek(seeds, [address for address in self._own() if is_p2p_address(address)])
            await asyncio.sleep(LOOK_S)

    def opened(self, welcome: pb.Welcome) -> None:
        """Ignore: the DHT needs no coordinator."""

    def lost(self) -> None:
        """Ignore: the DHT needs no coordinator."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Ignore: it handles no message."""


def libp2p_hosts(known: Iterable[tuple[PeerId, str]]) -> list[str]:
    """Return the libp2p addresses that can be dialled without a relay, each with its /p2p/ID."""
    return [
        f"{address.partition('/p2p/')[0]}/p2p/{peer_id}"
        for peer_id, text in known
        for address in text.split()
        if is_p2p_address(address) and not is_circuit_address(address)
    ]
