"""Test which connections the owner's limits allow."""

from __future__ import annotations

import pytest

from peer.links.gate import BANNED, OPEN, NetworkGate, refusal
from rollcast.wire.identity.certificates import Caller
from rollcast.wire.ids import PeerId, Role, RunId


def caller(role: Role, name: str = "a") -> Caller:
    return Caller(RunId("run"), role, PeerId(name))


@pytest.mark.parametrize(
    ("role", "of", "accepted"),
    [("peer", "origin", True), ("peer", "peer", True), ("learner", "origin", True), ("learner", "peer", False)],
)
def test_roles_that_may_have_links_with_each_other(role: Role, of: str, accepted: bool) -> None:
    assert (refusal(caller(role), of, OPEN, ()) == "") == accepted


def test_no_link_without_receiving_and_none_with_banned_peers() -> None:
    assert refusal(caller("peer"), "peer", NetworkGate(receive=False, reason="it is night"), ()) == "it is night"
    banned = frozenset({PeerId("a")})
    assert refusal(caller("peer"), "peer", OPEN, banned) == BANNED
    assert refusal(caller("peer", "b"), "peer", OPEN, banned) == ""


def test_a_peer_that_may_not_send_still_has_links() -> None:
    assert NetworkGate().links
    assert NetworkGate(send=False, reason="quota").links
    assert not NetworkGate(receive=False, reason="paused").links
