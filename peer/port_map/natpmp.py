"""NAT-PMP as bytes (RFC 6886): what is asked of a router and what it answers. Pure."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from rollcast.runtime.errors import MalformedMessage

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
