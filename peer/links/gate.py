"""Decide which callers may have a link, and whether the machine's owner lets chunks in and out. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from rollcast.wire.identity.certificates import Caller
from rollcast.wire.ids import PeerId


@dataclass(frozen=True, slots=True)
class NetworkGate:
    """The traffic of chunks that the machine's owner allows.

    Args:
        send: whether chunks may be sent.
        receive: whether chunks may be received.
        reason: why traffic is not allowed, in words.
    """

    send: bool = True
    receive: bool = True
    reason: str = ""

    @property
    def links(self) -> bool:
        """Return whether there are links at all.

        A peer that may not receive has no chunks to offer, and other peers' chunks are of no use to it.
        """
        return self.receive


#: Chunks may pass both ways.
OPEN = NetworkGate()

BANNED = "the operator has banned this peer"


def refusal(caller: Caller, role: str, gate: NetworkGate, banned: Container[PeerId]) -> str:
    """Return why a caller may not have a link with a process of this role, in words; empty if it may."""
    if not gate.links:
        return gate.reason
    if caller.peer_id in banned:
        return BANNED
    accepted = ("learner", "origin", "peer") if role == "origin" else ("origin", "peer")
    return "" if caller.role in accepted else f"a {role} accepts no links from a {caller.role}"
