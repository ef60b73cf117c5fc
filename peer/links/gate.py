"""With whom a process has links. Pure."""

from __future__ import annotations

from collections.abc import Container

from peer.links.network_gate import NetworkGate
from rollcast.wire.identity.certificates import Caller
from rollcast.wire.ids import PeerId

BANNED = "the operator has sent this peer away"


def refusal(caller: Caller, role: str, gate: NetworkGate, banned: Container[PeerId]) -> str:
    """Why a caller may not have a link with a process of this role, in words; empty: it may."""
    if not gate.links:
        return gate.reason
    if caller.peer_id in banned:
        return BANNED
    accepted = ("learner", "origin", "peer") if role == "origin" else ("origin", "peer")
    return "" if caller.role in accepted else f"a {role} accepts no links from a {caller.role}"
