"""Reserve slots at the relays that the coordinator names, and advertise this peer's addresses through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.links.addresses import is_p2p_address
from peer.p2p.transport import P2pTransport
from peer.reachability.advertised import AdvertisedReachability
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb


class CircuitsComponent:
    """Circuits through relays, a connectivity component (peer.connect.connectivity).

    Args:
        advertised: returns what others dial: host:port and the libp2p address, separated by a space; empty: this peer
            cannot be dialled.
    """

    kinds = frozenset({"circuit_relays"})

    def __init__(
        self,
        transport: P2pTransport,
        reachability: AdvertisedReachability,
        own_id: PeerId,
        advertised: Callable[[], str],
    ) -> None:
        self._transport = transport
        self._reachability = reachability
        self._own_id = own_id
        self._advertised = advertised

    async def run(self) -> None:
        """Advertise where others may reserve, and the addresses at which circuits reach this peer."""
        self._transport.on_circuits = self._reachability.set_circuits
        if self._transport.relays_for_others:
            own = next(filter(is_p2p_address, self._advertised().split(" ")), "")
            self._reachability.set_relay_address(f"{own}/p2p/{self._own_id}" if own else "")
        await asyncio.Event().wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """Keep the reservations until the coordinator names relays again."""

    def lost(self) -> None:
        """Keep the reservations: circuits need no coordinator."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Reserve at the relays that the coordinator names."""
        self._transport.want_relays(message.circuit_relays.addresses)
