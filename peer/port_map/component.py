"""Have the router forward or admit the ports that others dial (link.map_port), and advertise its outside addresses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from random import Random

import structlog

from peer.config import LinkConfig
from peer.links.addresses import P2pAddress
from peer.port_map.core import Action, Advertise, Ask, Event, LogFailure, MappingCore, Method, NotMapped, Woken
from peer.port_map.pcp import PortRefused
from peer.port_map.routers import Router, Version
from rollcast.runtime.errors import RollcastError
from rollcast.wire.address_scope import with_port
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

LEASE_S = 3600
_UNMAP_S = 1.5
_FIX: Mapping[Version, str] = {
    "IPv4": "turn on UPnP or NAT-PMP in the router, or forward the port there by hand and set link.advertise; "
    "without it this machine dials the others",
    "IPv6": "turn on PCP in the router, or allow the port in its IPv6 firewall by hand; without it machines that have "
    "IPv6 can link to this one when both dial at the same time",
}


class PortMapping:
    """Port mapping, a connectivity component (peer.connect.connectivity).

    Args:
        advertise: called with the addresses that others may dial, in place of that advertised at startup; empty: all
            mappings have ended.
        routers: for each IP version the protocols to try, in order.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(
        self,
        config: LinkConfig,
        advertise: Callable[[str], None],
        *,
        random: Random,
        routers: Mapping[Version, Mapping[Method, Router]],
    ) -> None:
        ports = [config.port, *([config.p2p_port] if config.p2p and config.p2p_port else [])]
        self._advertise = advertise
        self._kept = [_Mapping(version, ports, self._changed, random, of) for version, of in routers.items()]

    async def run(self) -> None:
        """Keep the ports mapped until cancelled, then remove the mappings."""
        async with asyncio.TaskGroup() as group:
            for one in self._kept:
                group.create_task(one.run())

    def opened(self, welcome: pb.Welcome) -> None:
        """Renew the mappings at once: the last session may have ended because an address has changed."""
        for one in self._kept:
            one.renew()

    def lost(self) -> None:
        """Ignore: the router is on this machine's own network."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Ignore: it handles no message."""

    def _changed(self) -> None:
        self._advertise(" ".join(one.advertised for one in self._kept if one.advertised))


class _Mapping:
    """Keeps ports mapped over one version of IP.

    Args:
        changed: called when ``advertised`` has changed.
        routers: protocols to try, in order.
    """

    def __init__(
        self,
        version: Version,
        ports: Sequence[int],
        changed: Callable[[], None],
        random: Random,
        routers: Mapping[Method, Router],
    ) -> None:
        self.advertised = ""
        """The addresses that others may dial, separated by spaces; empty: no port is mapped."""
        self._version, self._ports = version, ports
        self._changed = changed
        self._random = random
        self._routers = routers
        self._core = MappingCore(list(routers))
        self._renewal = asyncio.Event()

    def renew(self) -> None:
        """Renew a mapping now; without one the next round begins when it is due."""
        if self._core.held is not None:
            self._renewal.set()

    async def run(self) -> None:
        """Keep the ports mapped until cancelled, then remove the mappings."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._core.wake_at_s):
                        await self._renewal.wait()
                self._renewal.clear()
                actions = self._core.handle(Woken(), loop.time())
                while actions:
                    followed = [event for action in actions if (event := await self._do(action)) is not None]
                    actions = [action for event in followed for action in self._core.handle(event, loop.time())]
        finally:
            await self._give_back()

    async def _do(self, action: Action) -> Event | None:
        match action:
            case Ask(method):
                return await self._ask(method)
            case Advertise(ip, ports):
                self.advertised = advertised(ip, ports)
                happened = "ports mapped by the router" if self.advertised else "port mapping ended"
                log.info(happened, over=self._version, advertise=self.advertised)
                self._changed()
            case LogFailure(reasons):
                reason = "; ".join(reasons)
                log.warning("the router maps no ports", over=self._version, reason=reason, fix=_FIX[self._version])
        return None

    async def _ask(self, method: Method) -> Event:
        before = dict(self._core.held.ports) if self._core.held is not None else {}
        try:
            return await self._routers[method].map_ports(
                [(port, before.get(port, port)) for port in self._ports], LEASE_S
            )
        except RollcastError as error:
            reason = "; ".join(filter(None, (error.what, error.cause)))
            refused_for_s = error.holds_s if isinstance(error, PortRefused) else 0.0
            return NotMapped(method, reason, self._random.random(), refused_for_s)

    async def _give_back(self) -> None:
        held = self._core.held
        if held is not None:
            with contextlib.suppress(RollcastError, TimeoutError):  # the lease expires anyway
                async with asyncio.timeout(_UNMAP_S):
                    await self._routers[held.method].unmap(held.ports)


def advertised(ip: str, ports: Sequence[tuple[int, int]]) -> str:
    """Return the text that advertises outside ports: the address of direct links, then that of libp2p if mapped."""
    outside = [port for _, port in ports]
    return " ".join(
        [*(with_port(ip, port) for port in outside[:1]), *(str(P2pAddress.of(ip, port)) for port in outside[1:])]
    )
