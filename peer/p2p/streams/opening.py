"""Encode and parse the opening of a lane of a p2p link. Pure.

A link is two libp2p connections, each with one stream of /rollcast/chunk/1.0.0, because bulk in both directions on
one connection can deadlock py-libp2p: the lane ``up`` carries frames (rollcast/wire/links/frames.py) from the dialling
end, the lane ``down`` carries them to it. The dialling end opens both:

    opening = lane (1 byte: 0 up, 1 down) token (16 bytes, the same on both lanes of a link)

Then frames flow in the lane's direction, and in the other one only a zero byte every few seconds, so that a frozen end
is noticed. What arrives here comes from strangers, and its tests need no libp2p, so the module stands apart from lanes.
"""

from __future__ import annotations

from typing import Literal

from rollcast.runtime.errors import MalformedMessage

PROTOCOL = "/rollcast/chunk/1.0.0"
TOKEN_BYTES = 16
OPENING_BYTES = 1 + TOKEN_BYTES
SIGN_OF_LIFE = b"\0"
LaneName = Literal["up", "down"]
_LANES: tuple[LaneName, LaneName] = ("up", "down")


def encode_opening(lane: LaneName, token: bytes) -> bytes:
    """Return the first bytes of a lane."""
    return bytes([_LANES.index(lane)]) + token


def parse_opening(data: bytes) -> tuple[LaneName, bytes]:
    """Return the lane and the token of an opening.

    Raises:
        MalformedMessage: the bytes are no opening.
    """
    if len(data) != OPENING_BYTES or data[0] >= len(_LANES):
        raise MalformedMessage("a p2p lane did not begin with an opening")
    return _LANES[data[0]], data[1:]
