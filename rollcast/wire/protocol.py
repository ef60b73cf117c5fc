"""Negotiate the protocol version: every handshake carries the range that each side speaks."""

from __future__ import annotations

from rollcast.runtime.errors import MalformedMessage, ProtocolMismatch
from rollcast.wire.proto import rollcast_pb2 as pb

PROTOCOL_RANGE = (3, 3)
"""Oldest and newest protocol version that this software speaks."""


def agree(ours: tuple[int, int], theirs: tuple[int, int]) -> int:
    """Return the newest protocol version that both sides speak; ranges are (oldest, newest).

    Raises:
        ProtocolMismatch: the sides share no version; the message names the side to upgrade.
        MalformedMessage: the received range is not a range.
    """
    if not 0 < theirs[0] <= theirs[1]:
        raise MalformedMessage(f"protocol range {theirs[0]}..{theirs[1]} is not a range")
    newest = min(ours[1], theirs[1])
    if newest >= max(ours[0], theirs[0]):
        return newest
    older = "the other side" if theirs[1] < ours[0] else "this side"
    raise ProtocolMismatch(
        "the two sides speak no common protocol version",
        cause=f"we speak {ours[0]}..{ours[1]}, the other side {theirs[0]}..{theirs[1]}",
        fix=f"upgrade Rollcast on {older}, which is the older one",
    )


def range_to_pb(protocol: tuple[int, int] = PROTOCOL_RANGE) -> pb.ProtocolRange:
    """Convert a protocol range to a message."""
    return pb.ProtocolRange(min=protocol[0], max=protocol[1])


def agree_with(theirs: pb.ProtocolRange) -> int:
    """Return the newest version that this software and the sender of a received range both speak; see ``agree``."""
    return agree(PROTOCOL_RANGE, (theirs.min, theirs.max))
