"""Have a router's firewall admit ports over IPv6 by PCP (RFC 6887): MAP as bytes, and a client for one router.

Routers do not translate IPv6, but most drop incoming connections (RFC 6092). A mapping of PCP whose outside address is
the inside one is a pinhole in that firewall (section 11). A router that does translate (RFC 6296) answers with another.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from peer.port_map.core import Mapped
from peer.port_map.router_socket import PORT, RouterSocket
from rollcast.runtime.errors import MalformedMessage, Unreachable
from rollcast.wire.address_scope import Scope, plain_host, scope_of

NONCE_BYTES = 12
ANSWER_BYTES_MAX = 1100
"""Longest message of PCP (section 7)."""
LEASE_S_MAX = 86400
"""Longer leases count as this one (section 15): the router may be mistaken."""
REFUSED_S_MAX = 1800
"""A refusal holds for 30 minutes at most, the value that RFC 6887 recommends for long ones (section 7.4)."""
_VERSION, _MAP, _ANSWER, _TCP = 2, 1, 0x80, 6
_UNSUPPORTED_VERSION = 1
_REQUEST = struct.Struct("!BB2xI16s")
_HEADER = struct.Struct("!BBxBII12x")
_MAPPING = struct.Struct("!12sB3xHH16s")
_MEANINGS = {
    1: "it supports another version of PCP",
    2: "it does not allow this machine to open ports, or another program opened this one",
    3: "it cannot read the request",
    4: "it opens no ports on request",
    5: "it does not support an option of the request",
    6: "it cannot read an option of the request",
    7: "its own network has failed",
    8: "its table of mappings is full",
    9: "it opens no TCP ports",
    10: "this machine has as many open ports as it allows",
    11: "it cannot provide the outside address or port",
    12: "the request reached it from another address than that of this machine",
    13: "it does not support this number of filters",
}
"""Meanings of the result codes (section 7.4)."""


@dataclass(frozen=True, slots=True)
class MapAnswer:
    """The router's answer to a MAP request.

    Args:
        refusal: why the router refuses; empty: it does not.
        lease_s: the lease in seconds, 0 if the mapping was removed; of a refusal, how long it will hold.
    """

    nonce: bytes
    inside_port: int
    outside_port: int
    outside_ip: str
    lease_s: int
    refusal: str = ""


class PortRefused(Unreachable):
    """The router refuses to open a port, and will again for ``holds_s`` seconds."""

    def __init__(self, what: str, *, cause: str, holds_s: float) -> None:
        super().__init__(what, cause=cause)
        self.holds_s = holds_s


def ask_mapping(own: str, nonce: bytes, inside_port: int, outside_port: int, lease_s: int) -> bytes:
    """Return a MAP request for a TCP port (sections 7.1 and 11.1); lease 0 removes it, with outside port 0.

    Args:
        own: this machine's IPv6 address, from which the request is sent.
        nonce: NONCE_BYTES bytes that the router must see again to change this mapping.
    """
    header = _REQUEST.pack(_VERSION, _MAP, lease_s, ipaddress.IPv6Address(own).packed)
    return header + _MAPPING.pack(nonce, _TCP, inside_port, outside_port, bytes(16))


def parse(data: bytes) -> MapAnswer:
    """Parse a router's answer (sections 7.2 and 11.1). Options are ignored: requests have none.

    Raises:
        MalformedMessage: the bytes are no answer to a MAP request for a TCP port.
    """
    if not _HEADER.size + _MAPPING.size <= len(data) <= ANSWER_BYTES_MAX or len(data) % 4:
        raise MalformedMessage(f"a PCP answer to MAP has the wrong size, {len(data)} bytes")
    version, kind, result, lease_s, _ = _HEADER.unpack_from(data)
    if kind != _ANSWER | _MAP or (version != _VERSION and result != _UNSUPPORTED_VERSION):
        raise MalformedMessage(f"a packet with version {version} and operation {kind} is no PCP answer to MAP")
    nonce, protocol, inside, outside, ip = _MAPPING.unpack_from(data, _HEADER.size)
    if protocol != _TCP:
        raise MalformedMessage(f"a PCP answer is about protocol {protocol}, not TCP")
    refusal = _MEANINGS.get(result, f"result {result}") if result else ""
    lease_s = min(lease_s, REFUSED_S_MAX if refusal else LEASE_S_MAX)
    return MapAnswer(nonce, inside, outside, plain_host(str(ipaddress.IPv6Address(ip))), lease_s, refusal)


class Pcp:
    """A PCP client for one router."""

    def __init__(self, socket: RouterSocket[MapAnswer], own: str, nonce: bytes) -> None:
        self._socket, self._router = socket, socket.router
        self._own, self._nonce = own, nonce

    @classmethod
    @asynccontextmanager
    async def open(cls, router: str, own: str, nonce: bytes, port: int = PORT) -> AsyncIterator[Pcp]:
        """Open a client.

        Args:
            router: the router's IPv6 address, a link-local one with its interface (fe80::1%eth0).
            own: this machine's address, which the router is to let others dial.
            nonce: see ``ask_mapping``; the same for all requests to this router, also after a restart.
        """
        socket = RouterSocket(router, port, protocol="PCP", parse=parse, answer_bytes_max=ANSWER_BYTES_MAX, own=own)
        async with socket:
            yield cls(socket, own, nonce)

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """Have the router admit TCP ports of this machine.

        Args:
            ports: (inside, preferred outside).
            lease_s: preferred lease in seconds; the router may grant another.

        Raises:
            PortRefused: the router refuses.
            Unreachable: the router does not answer, or with an address that leads nowhere.
        """
        got = [await self._map(inside, outside, lease_s) for inside, outside in ports]
        ips = {one.outside_ip for one in got}
        if len(ips) > 1 or scope_of(got[0].outside_ip) is not Scope.PUBLIC:
            raise Unreachable(
                f"the router {self._router} opens ports at no public address", cause=", ".join(sorted(ips))
            )
        pairs = tuple((one.inside_port, one.outside_port) for one in got)
        return Mapped("PCP", got[0].outside_ip, pairs, min(one.lease_s for one in got))

    async def unmap(self, inside_ports: Sequence[int]) -> None:
        """Have the router close these ports.

        Raises:
            PortRefused, Unreachable: see map_ports.
        """
        for inside in inside_ports:
            await self._map(inside, 0, 0)

    async def _map(self, inside: int, outside: int, lease_s: int) -> MapAnswer:
        answer = await self._socket.ask(
            ask_mapping(self._own, self._nonce, inside, outside, lease_s),
            lambda answer: (answer.nonce, answer.inside_port) == (self._nonce, inside),
        )
        if answer.refusal:
            what = f"the router {self._router} does not open port {inside}"
            raise PortRefused(what, cause=answer.refusal, holds_s=answer.lease_s)
        if lease_s and not (answer.lease_s and answer.outside_port):
            raise Unreachable(f"the router {self._router} grants port {inside} no lease")
        return answer
