"""Reaching each other through relays, as a part of the meeting: the coordinator names relays, we tell where we are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.links.addresses import is_p2p_address
from peer.p2p.transport import P2pTransport
from peer.reachability.advertised import AdvertisedReachability
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb


class CircuitsComponent:
    """See peer.connect.connectivity.ConnectivityComponent.

    Args:
        advertised: what others dial: host:port and libp2p's; empty: we cannot be dialled.
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
        """Tell where others may reserve, and where we can be reached."""
        self._transport.on_circuits = self._reachability.set_circuits
        if self._transport.relays_for_others:
            own = next(filter(is_p2p_address, self._advertised().split(" ")), "")
            self._reachability.set_relay_address(f"{own}/p2p/{self._own_id}" if own else "")
        await asyncio.Event().wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """Relays are named anew by a coordinator that does not remember us; reservations go on until then."""

    def lost(self) -> None:
        """Reservations go on: circuits need no coordinator."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Relays are named."""
        self._transport.want_relays(message.circuit_relays.addresses)
