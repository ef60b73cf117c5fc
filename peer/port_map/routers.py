"""Ask this machine's router for ports by the protocols that it may have."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from peer.config import LinkConfig
from peer.port_map.core import Mapped, Method
from peer.port_map.gateway import default_gateway, default_gateway_ipv6
from peer.port_map.natpmp import NatPmp
from peer.port_map.pcp import NONCE_BYTES, Pcp
from peer.port_map.upnp import Upnp
from peer.reachability.checking import NOWHERE_IPV6, address_on_the_way_out
from rollcast.runtime.errors import Unreachable
from rollcast.wire.identity.identity import Identity

Version = Literal["IPv4", "IPv6"]


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


class _DatagramRouter(ABC):
    """A router that is asked over UDP, by a client that is open for one round of requests."""

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """See NatPmp and Pcp."""
        async with self._client() as client:
            return await client.map_ports(ports, lease_s)

    async def unmap(self, ports: Sequence[tuple[int, int]]) -> None:
        """See NatPmp and Pcp."""
        async with self._client() as client:
            await client.unmap([inside for inside, _ in ports])

    @abstractmethod
    def _client(self) -> AbstractAsyncContextManager[NatPmp | Pcp]:
        """Return the client to open.

        Raises:
            Unreachable: there is no router to ask.
        """


class NatPmpRouter(_DatagramRouter):
    """A router that is asked over NAT-PMP.

    Args:
        router: its address; empty: that of the default route.
    """

    def __init__(self, router: str = "", **options: Any) -> None:
        self._router = router
        self._options = options

    def _client(self) -> AbstractAsyncContextManager[NatPmp]:
        router = self._router or default_gateway()
        if not router:
            raise Unreachable("there is no router to ask: this machine has no default route over IPv4")
        return NatPmp.open(router, **self._options)


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


class PcpRouter(_DatagramRouter):
    """The router of this machine's IPv6 network, asked over PCP.

    Args:
        nonce: see peer.port_map.pcp.
        router: its address; empty: that of the default route.
        own: returns this machine's IPv6 address on the way to the internet; empty: it has none.
    """

    def __init__(
        self,
        nonce: bytes,
        *,
        router: str = "",
        own: Callable[[], str] = lambda: address_on_the_way_out(NOWHERE_IPV6),
        **options: Any,
    ) -> None:
        self._nonce, self._router, self._own = nonce, router, own
        self._options = options

    def _client(self) -> AbstractAsyncContextManager[Pcp]:
        own, router = self._own(), self._router or default_gateway_ipv6()
        if not (own and router):
            raise Unreachable("there is no router to ask: this machine has no default route over IPv6")
        return Pcp.open(router, own, self._nonce, **self._options)


def routers_for(config: LinkConfig, nonce: bytes) -> dict[Version, dict[Method, Router]]:
    """Return the protocols to try for each version of IP over which links are accepted (link.host).

    Args:
        nonce: see peer.port_map.pcp.
    """
    own = config.host
    over_ipv4: dict[Version, dict[Method, Router]] = {"IPv4": {"NAT-PMP": NatPmpRouter(), "UPnP": UpnpRouter()}}
    if ":" not in own:
        return over_ipv4
    if own != "::":
        return {"IPv6": {"PCP": PcpRouter(nonce, own=lambda: own)}}
    return {**over_ipv4, "IPv6": {"PCP": PcpRouter(nonce)}}


def pcp_nonce(identity: Identity) -> bytes:
    """Return the nonce of this peer's pinholes, a secret derived from its key.

    A process that was killed must be able to renew its pinhole when it starts again: the router refuses another nonce
    until the lease has expired (RFC 6887, section 11.3).
    """
    return hashlib.sha256(identity.sign_bytes("rollcast/pcp-nonce/1", b"")).digest()[:NONCE_BYTES]
