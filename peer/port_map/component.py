"""Have the router forward the ports that others dial (link.map_port), and advertise its outside address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import structlog

from peer.config import LinkConfig
from peer.links.addresses import P2pAddress
from peer.port_map.core import Action, Advertise, Ask, Event, LogFailure, Mapped, MappingCore, Method, NotMapped, Woken
from peer.port_map.natpmp import NatPmp
from peer.port_map.upnp import Upnp
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

LEASE_S = 3600
_UNMAP_S = 1.5
_FIX = (
    "turn on UPnP or NAT-PMP in the router, or forward the port there by hand and set link.advertise; "
    "without it this machine dials the others"
)


_TABLE = Path("/proc/net/route")
_UP_AND_GATEWAY = 0x3  # RTF_UP | RTF_GATEWAY, linux/route.h


def default_gateway(table: Path = _TABLE) -> str:
    """Return the IPv4 address of this machine's router; empty: no default route, or not a Linux system."""
    try:
        text = table.read_text(encoding="ascii")
    except OSError:
        return ""
    return gateway_in(text)


def gateway_in(text: str) -> str:
    """Return the gateway of the default route with the lowest metric in the text of /proc/net/route. Pure."""
    found: list[tuple[int, str]] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        try:
            destination, gateway, flags = (int(fields[index], 16) for index in (1, 2, 3))
            metric, mask = int(fields[6]), int(fields[7], 16)
        except (IndexError, ValueError):
            continue
        if destination == mask == 0 and flags & _UP_AND_GATEWAY == _UP_AND_GATEWAY:
            found.append((metric, socket.inet_ntoa(struct.pack("=I", gateway))))
    return min(found)[1] if found else ""


class Router(Protocol):
    """One protocol for mapping ports. Ports are pairs (inside, outside)."""

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """Map the ports for lease_s seconds, and prefer these outside ports.

        Raises:
            RollcastError: no router maps them.
        """

    async def unmap(self, ports: Sequence[tuple[int, int]]) -> None:
        """Remove the mappings.

        Raises:
            RollcastError: the router does not answer, or refuses.
        """


class NatPmpRouter:
    """A router that is asked over NAT-PMP.

    Args:
        router: its address; empty: that of the default route.
    """

    def __init__(self, router: str = "", **options: Any) -> None:
        self._router = router
        self._options = options

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """See NatPmp."""
        async with self._client() as client:
            return await client.map_ports(ports, lease_s)

    async def unmap(self, ports: Sequence[tuple[int, int]]) -> None:
        """See NatPmp."""
        async with self._client() as client:
            await client.unmap([inside for inside, _ in ports])

    def _client(self) -> NatPmp:
        router = self._router or default_gateway()
        if not router:
            raise Unreachable("there is no router to ask: this machine has no default route over IPv4")
        return NatPmp(router, **self._options)


class UpnpRouter:
    """A router that is asked over UPnP."""

    def __init__(self, **options: Any) -> None:
        self._upnp = Upnp(**options)

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """See Upnp."""
        return await self._upnp.map_ports(ports, lease_s)

    async def unmap(self, ports: Sequence[tuple[int, int]]) -> None:
        """See Upnp."""
        await self._upnp.unmap([outside for _, outside in ports])


class PortMapping:
    """Port mapping, a connectivity component (peer.connect.connectivity).

    Args:
        advertise: called with the address that others may dial, in place of the one advertised at startup; empty: the
            mapping has ended.
        routers: protocols to try, in order; None: NAT-PMP, then UPnP.
    """

    kinds: frozenset[str] = frozenset()

    def __init__(
        self,
        config: LinkConfig,
        advertise: Callable[[str], None],
        *,
        random: Random,
        routers: dict[Method, Router] | None = None,
    ) -> None:
        self._ports = [config.port, *([config.p2p_port] if config.p2p and config.p2p_port else [])]
        self._advertise = advertise
        self._random = random
        self._routers: dict[Method, Router] = routers or {"NAT-PMP": NatPmpRouter(), "UPnP": UpnpRouter()}
        self._core = MappingCore(list(self._routers))

    async def run(self) -> None:
        """Keep the ports mapped until cancelled, then remove the mappings."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(max(0.0, self._core.wake_at_s - loop.time()))
                actions = self._core.handle(Woken(), loop.time())
                while actions:
                    followed = [event for action in actions if (event := await self._do(action)) is not None]
                    actions = [action for event in followed for action in self._core.handle(event, loop.time())]
        finally:
            await self._give_back()

    def opened(self, welcome: pb.Welcome) -> None:
        """Ignore: the router is on this machine's own network."""

    def lost(self) -> None:
        """Ignore: the router is on this machine's own network."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Ignore: it handles no message."""

    async def _do(self, action: Action) -> Event | None:
        match action:
            case Ask(method):
                return await self._ask(method)
            case Advertise(ip, ports):
                text = advertised(ip, ports)
                log.info("ports mapped by the router" if text else "port mapping ended", advertise=text)
                self._advertise(text)
            case LogFailure(reasons):
                log.warning("the router maps no ports", reasons="; ".join(reasons), fix=_FIX)
        return None

    async def _ask(self, method: Method) -> Event:
        before = dict(self._core.held.ports) if self._core.held is not None else {}
        try:
            return await self._routers[method].map_ports(
                [(port, before.get(port, port)) for port in self._ports], LEASE_S
            )
        except RollcastError as error:
            return NotMapped(method, "; ".join(filter(None, (error.what, error.cause))), self._random.random())

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
        [*(f"{ip}:{port}" for port in outside[:1]), *(str(P2pAddress.of(ip, port)) for port in outside[1:])]
    )
