"""How a lane of a p2p link begins. No I/O here.

A link is two libp2p connections, each with one stream of /rollcast/chunk/1.0.0, because bulk in both directions on
one connection can deadlock py-libp2p: the lane ``up`` carries frames (rollcast/wire/link.py) from whoever dialled, the
lane ``down`` to them. The dialling side opens both:

    opening = lane (1 byte: 0 up, 1 down) token (16 bytes, the same on both lanes of a link)

Then frames flow in the lane's direction, and in the other one only grants: how many bytes the receiving end lets the
sending end have sent in all (8 bytes, big-endian), as bytes are taken and every few seconds in any case, so that a
frozen end is noticed. The first 64 KiB need no grant.
"""

from __future__ import annotations

import struct
from typing import Literal

from rollcast.runtime.errors import MalformedMessage

PROTOCOL = "/rollcast/chunk/1.0.0"
TOKEN_BYTES = 16
OPENING_BYTES = 1 + TOKEN_BYTES
GRANT_BYTES = 8
FIRST_GRANT_BYTES = 64 << 10
LaneName = Literal["up", "down"]
_LANES: tuple[LaneName, LaneName] = ("up", "down")
_GRANT = struct.Struct(">Q")


def encode_opening(lane: LaneName, token: bytes) -> bytes:
    """The first bytes of a lane."""
    return bytes([_LANES.index(lane)]) + token


def parse_opening(data: bytes) -> tuple[LaneName, bytes]:
    """Lane and token.

    Raises:
        MalformedMessage: it is no opening.
    """
    if len(data) != OPENING_BYTES or data[0] >= len(_LANES):
        raise MalformedMessage("a p2p lane did not begin with an opening")
    return _LANES[data[0]], data[1:]


def encode_grant(size_bytes: int) -> bytes:
    """What may have been sent in all."""
    return _GRANT.pack(size_bytes)


def parse_grant(data: bytes, granted_before: int) -> int:
    """The newest of one or more grants.

    Raises:
        MalformedMessage: it is none, or takes back what was granted.
    """
    granted = granted_before
    for (value,) in _GRANT.iter_unpack(data):
        if value < granted:
            raise MalformedMessage("a p2p link took a grant back")
        granted = value
    return granted
