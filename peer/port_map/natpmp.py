"""Map ports over NAT-PMP (RFC 6886): the messages as bytes, and a client for one router."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from peer.port_map.core import Mapped
from peer.port_map.router_socket import PORT, RouterSocket
from rollcast.runtime.errors import MalformedMessage, Unreachable

ANSWER_BYTES_MAX = 16
_VERSION = 0
_ADDRESS, _MAP_TCP, _ANSWER = 0, 2, 128
_MEANINGS = {
    1: "it supports another version of NAT-PMP",
    2: "port mapping is turned off in its settings",
    3: "it has no outside address itself",
    4: "its table of mappings is full",
    5: "it does not support this request",
}
"""Meanings of the result codes (section 3.5)."""


@dataclass(frozen=True, slots=True)
class OutsideAddress:
    """The router's own outside address."""

    ip: str


@dataclass(frozen=True, slots=True)
class MappedPort:
    """A mapped TCP port of this machine, and its lease in seconds; 0: the mapping was removed."""

    inside_port: int
    outside_port: int
    lease_s: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The router refuses the request."""

    reason: str


Answer = OutsideAddress | MappedPort | Refused


def ask_address() -> bytes:
    """Return a request for the router's outside address (section 3.2)."""
    return struct.pack("!BB", _VERSION, _ADDRESS)


def ask_mapping(inside_port: int, outside_port: int, lease_s: int) -> bytes:
    """Return a request for a TCP port (section 3.3); lease 0 removes it, with outside port 0 (section 3.4)."""
    return struct.pack("!BBHHHI", _VERSION, _MAP_TCP, 0, inside_port, outside_port, lease_s)


def parse(data: bytes) -> Answer:
    """Parse a router's answer.

    Raises:
        MalformedMessage: the bytes are no answer of NAT-PMP.
    """
    if len(data) < 4:
        raise MalformedMessage(f"a NAT-PMP answer has {len(data)} bytes, fewer than its header of 4")
    version, kind, result = struct.unpack_from("!BBH", data)
    if version != _VERSION or kind not in (_ANSWER + _ADDRESS, _ANSWER + _MAP_TCP):
        raise MalformedMessage(f"a packet with version {version} and operation {kind} is no NAT-PMP answer")
    if result:
        return Refused(_MEANINGS.get(result, f"result {result}"))
    if kind == _ANSWER + _ADDRESS and len(data) == 12:
        return OutsideAddress(str(ipaddress.IPv4Address(data[8:12])))
    if kind == _ANSWER + _MAP_TCP and len(data) == 16:
        inside, outside, lease_s = struct.unpack_from("!HHI", data, 8)
        return MappedPort(inside, outside, lease_s)
    raise MalformedMessage(f"a NAT-PMP answer to operation {kind - _ANSWER} has the wrong size, {len(data)} bytes")


class NatPmp:
    """A NAT-PMP client for one router."""

    def __init__(self, socket: RouterSocket[Answer]) -> None:
        self._socket, self._router = socket, socket.router

    @classmethod
    @asynccontextmanager
    async def open(cls, router: str, port: int = PORT) -> AsyncIterator[NatPmp]:
        """Open a client for the router at an IPv4 address."""
        socket = RouterSocket(router, port, protocol="NAT-PMP", parse=parse, answer_bytes_max=ANSWER_BYTES_MAX)
        async with socket:
            yield cls(socket)

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """Map TCP ports of this machine.

        Args:
            ports: (inside, preferred outside).
            lease_s: preferred lease in seconds; the router may grant less.

        Raises:
            Unreachable: the router does not answer, or refuses.
        """
        address = await self._ask(ask_address(), lambda answer: isinstance(answer, OutsideAddress))
        assert isinstance(address, OutsideAddress)
        got = [await self._map(inside, outside, lease_s) for inside, outside in ports]
        shortest_s = min(port.lease_s for port in got)
        return Mapped("NAT-PMP", address.ip, tuple((port.inside_port, port.outside_port) for port in got), shortest_s)

    async def unmap(self, inside_ports: Sequence[int]) -> None:
        """Remove the mappings of these ports.

        Raises:
            Unreachable: the router does not answer, or refuses.
        """
        for inside in inside_ports:
            await self._map(inside, 0, 0)

    async def _map(self, inside: int, outside: int, lease_s: int) -> MappedPort:
        answer = await self._ask(
            ask_mapping(inside, outside, lease_s),
            lambda answer: isinstance(answer, MappedPort) and answer.inside_port == inside,
        )
        assert isinstance(answer, MappedPort)
        if lease_s and not (answer.lease_s and answer.outside_port):
            raise Unreachable(f"the router {self._router} grants port {inside} no lease")
        return answer

    async def _ask(self, request: bytes, expected: Callable[[Answer], bool]) -> Answer:
        """Return the answer to a request; a refusal does not name the port that it is about (section 3.5)."""
        answer = await self._socket.ask(request, lambda answer: isinstance(answer, Refused) or expected(answer))
        if isinstance(answer, Refused):
            raise Unreachable(f"the router {self._router} maps no port", cause=answer.reason)
        return answer
