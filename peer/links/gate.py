"""With whom a process has links. Pure.

What a machine's owner lets pass: chunks out, chunks in. Pure.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from rollcast.wire.identity.certificates import Caller
from rollcast.wire.ids import PeerId


@dataclass(frozen=True, slots=True)
class NetworkGate:
    """Args: send, receive: whether chunks may go out, and come in. reason: why not, in words."""

    send: bool = True
    receive: bool = True
    reason: str = ""

    @property
    def links(self) -> bool:
        """Whether there are links at all: who may not receive is of no use to others, and they of none to it."""
        return self.receive


#: Everything may pass.
OPEN = NetworkGate()


BANNED = "the operator has sent this peer away"


def refusal(caller: Caller, role: str, gate: NetworkGate, banned: Container[PeerId]) -> str:
    """Why a caller may not have a link with a process of this role, in words; empty: it may."""
    if not gate.links:
        return gate.reason
    if caller.peer_id in banned:
        return BANNED
    accepted = ("learner", "origin", "peer") if role == "origin" else ("origin", "peer")
    return "" if caller.role in accepted else f"a {role} accepts no links from a {caller.role}"
