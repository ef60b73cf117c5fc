"""Report the address at which peers of the same local network can dial this one; the coordinator tells only them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import structlog

from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.checking import address_on_the_way_out
from rollcast.wire.joining.local_address import local_address
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

_LOOK_S = 30.0
"""Seconds between two checks: machines move from one network to another."""
_LOOKUP_S = 5.0
_ANY = ("", "0.0.0.0", "::")


class LocalAddress:
    """The local address, a connectivity component (peer.connect.connectivity).

    Create it inside a running event loop.

    Args:
        host: interface on which links are accepted; 0.0.0.0: all.
        port: returns the port of links; it is called once the process listens. 0: it does not listen.
        coordinator: returns the coordinator's host; of several interfaces, the one on the route to it is reported.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(
        self, host: str, port: Callable[[], int], reachability: AdvertisedReachability, coordinator: Callable[[], str]
    ) -> None:
        self._host, self._port = host, port
        self._reachability = reachability
        self._coordinator = coordinator
        self._look_now = asyncio.Event()
        self._reported = ""

    async def run(self) -> None:
        """Check the address every _LOOK_S seconds, and in each new session, until cancelled."""
        while True:
            self._look_now.clear()
            found = local_address(await self._own_host(), self._port())
            if found != self._reported:
                log.info("address for peers of the local network", address=found or "none")
                self._reported = found
                self._reachability.set_local_address(found)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._look_now.wait()

    def opened(self, welcome: pb.Welcome) -> None:
        """Check at once: the coordinator may have another address now."""
        self._look_now.set()

    def lost(self) -> None:
        """Continue: the next session gets the newest address."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Ignore: it handles no message."""

    async def _own_host(self) -> str:
        if self._host not in _ANY:
            return self._host
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = await asyncio.get_running_loop().getaddrinfo(
                    self._coordinator(), 9, family=socket.AF_INET, type=socket.SOCK_DGRAM
                )
        except (OSError, TimeoutError):  # reached over IPv6, or not at all just now
            return address_on_the_way_out()
        return address_on_the_way_out(str(found[0][4][0]))
