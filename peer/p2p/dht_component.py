"""The table of members as a part of the meeting: whom to begin with, and who is told of those that it names."""

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
    """See peer.connect.connectivity.ConnectivityComponent.

    Args:
        seeds: libp2p addresses, each with its /p2p/ID, of hosts to begin with, whatever else is known.
        known: peers and their addresses, separated by spaces, as known at this moment.
        own: addresses of ours, as known at this moment.
        found: told who says that they can be reached, and where: a hint.
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
        """Say anew what changed, until cancelled."""
        while True:
            seeds = (*self._seeds, *libp2p_hosts(self._known()))[:SEEDS_MOST]
            self._transport.seek(seeds, [address for address in self._own() if is_p2p_address(address)])
            await asyncio.sleep(LOOK_S)

    def opened(self, welcome: pb.Welcome) -> None:
        """See ConnectivityComponent; it works without a coordinator."""

    def lost(self) -> None:
        """See ConnectivityComponent."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """See ConnectivityComponent; nothing is for it."""


def libp2p_hosts(known: Iterable[tuple[PeerId, str]]) -> list[str]:
    """The libp2p addresses that can be dialled without a relay, each with its /p2p/ID."""
    return [
        f"{address.partition('/p2p/')[0]}/p2p/{peer_id}"
        for peer_id, text in known
        for address in text.split()
        if is_p2p_address(address) and not is_circuit_address(address)
    ]
