"""Ask a router for a port over NAT-PMP (RFC 6886): its messages as bytes, and one UDP socket that repeats each
question until it is answered or given up.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from peer.port_map.core import Mapped
from rollcast.runtime.errors import MalformedMessage, Unreachable

PORT = 5351
"""UDP port at which a router listens (section 3)."""
ANSWER_BYTES_MAX = 16
_VERSION = 0
_ADDRESS, _MAP_TCP, _ANSWER = 0, 2, 128
_MEANINGS = {
    1: "it speaks another version",
    2: "it is told to allow nobody",
    3: "it has no address itself",
    4: "it has no room",
    5: "it does not know this request",
}
"""Section 3.5."""


@dataclass(frozen=True, slots=True)
class OutsideAddress:
    """The router's own address on its other side."""

    ip: str


@dataclass(frozen=True, slots=True)
class MappedPort:
    """A TCP port of ours as others see it, for so many seconds; 0: it is mapped no more."""

    inside_port: int
    outside_port: int
    lease_s: int


@dataclass(frozen=True, slots=True)
class Refused:
    """It does not do it."""

    reason: str


Answer = OutsideAddress | MappedPort | Refused


def ask_address() -> bytes:
    """A request for the router's outside address (section 3.2)."""
    return struct.pack("!BB", _VERSION, _ADDRESS)


def ask_mapping(inside_port: int, outside_port: int, lease_s: int) -> bytes:
    """A request for a TCP port (section 3.3); lease 0 ends it, and must then name outside port 0 (section 3.4)."""
    return struct.pack("!BBHHHI", _VERSION, _MAP_TCP, 0, inside_port, outside_port, lease_s)


def parse(data: bytes) -> Answer:
    """A router's answer.

    Raises:
        MalformedMessage: it is none.
    """
    if len(data) < 4:
        raise MalformedMessage(f"a NAT-PMP answer of {len(data)} bytes")
    version, kind, result = struct.unpack_from("!BBH", data)
    if version != _VERSION or kind not in (_ANSWER + _ADDRESS, _ANSWER + _MAP_TCP):
        raise MalformedMessage(f"no NAT-PMP answer: version {version}, operation {kind}")
    if result:
        return Refused(_MEANINGS.get(result, f"result {result}"))
    if kind == _ANSWER + _ADDRESS and len(data) == 12:
        return OutsideAddress(str(ipaddress.IPv4Address(data[8:12])))
    if kind == _ANSWER + _MAP_TCP and len(data) == 16:
        inside, outside, lease_s = struct.unpack_from("!HHI", data, 8)
        return MappedPort(inside, outside, lease_s)
    raise MalformedMessage(f"a NAT-PMP answer of {len(data)} bytes to operation {kind - _ANSWER}")


FIRST_WAIT_S = 0.25
TRIES = 5
"""Waits double from the first one (RFC 6886, section 3.1, which goes on for a minute: a router answers at once)."""


class NatPmp(asyncio.DatagramProtocol):
    """One router. Use as an asynchronous context manager.

    Args:
        router: its IPv4 address.
    """

    def __init__(self, router: str, port: int = PORT) -> None:
        self._router = (router, port)
        self._transport: asyncio.DatagramTransport | None = None
        self._wanted: Callable[[Answer], bool] = lambda answer: False
        self._answer: asyncio.Future[Answer] | None = None

    async def __aenter__(self) -> NatPmp:
        """Bind a socket that hears from the router only."""
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=self._router)
        except OSError as error:
            raise Unreachable(f"no packet can be sent to the router {self._router[0]}", cause=str(error)) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._transport is not None
        self._transport.close()

    async def map_ports(self, ports: Sequence[tuple[int, int]], lease_s: int) -> Mapped:
        """Have TCP ports of this machine mapped.

        Args:
            ports: (inside, outside wished for).
            lease_s: wished for; the router may say less.

        Raises:
            Unreachable: it does not answer, or does not do it.
        """
        address = await self._ask(ask_address(), lambda answer: isinstance(answer, OutsideAddress))
        assert isinstance(address, OutsideAddress)
        got = [await self._map(inside, outside, lease_s) for inside, outside in ports]
        shortest_s = min(port.lease_s for port in got)
        return Mapped("NAT-PMP", address.ip, tuple((port.inside_port, port.outside_port) for port in got), shortest_s)

    async def unmap(self, inside_ports: Sequence[int]) -> None:
        """Have them mapped no more.

        Raises:
            Unreachable: it does not answer, or does not do it.
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
            raise Unreachable(f"the router {self._router[0]} maps port {inside} for no time at all")
        return answer

    async def _ask(self, request: bytes, wanted: Callable[[Answer], bool]) -> Answer:
        assert self._transport is not None
        self._wanted, self._answer = wanted, asyncio.get_running_loop().create_future()
        wait_s = FIRST_WAIT_S
        for _ in range(TRIES):
            self._transport.sendto(request)
            done, _ = await asyncio.wait((self._answer,), timeout=wait_s)
            if done:
                answer = self._answer.result()
                if isinstance(answer, Refused):
                    raise Unreachable(f"the router {self._router[0]} maps no port", cause=answer.reason)
                return answer
            wait_s *= 2.0
        raise Unreachable(f"the router {self._router[0]} does not answer")

    # ------------------------------------------------------------ DatagramProtocol

    def datagram_received(self, data: bytes, addr: object) -> None:
        """An answer; what was not asked for is ignored."""
        if self._answer is None or self._answer.done() or len(data) > ANSWER_BYTES_MAX:
            return
        try:
            answer = parse(data)
        except MalformedMessage:
            return
        if isinstance(answer, Refused) or self._wanted(answer):
            self._answer.set_result(answer)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there: known at once."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Unreachable(f"the router {self._router[0]} knows no NAT-PMP", cause=str(exc)))
