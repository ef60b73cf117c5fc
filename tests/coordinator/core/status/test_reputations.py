"""Which cards the dashboard and the command line are given."""

from __future__ import annotations

import pytest

from coordinator.core.events.operator_events import PeerBanned
from coordinator.core.status.reputations import build_reputations
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId
from tests.coordinator.audited import audited_world, finding


def test_the_overview_names_those_that_are_not_in_order_and_every_invite() -> None:
    world = audited_world(finding(1, beyond=1), finding(2, "b"))
    world.handle(PeerBanned(PeerId("gone"), "canned"))
    shown = build_reputations(world.core.state)
    assert [(one.id, one.state) for one in shown.peers] == [("a", "watched"), ("gone", "banned")]
    assert [(one.kind, one.id, one.state, one.rollouts) for one in shown.invites] == [("invite", "ann", "watched", 2)]
    with pytest.raises(MalformedMessage):
        build_reputations(world.core.state, "nobody")


def test_a_suspended_invite_says_how_to_enable_it() -> None:
    world = audited_world(finding(1, beyond=1, far=1), finding(2, "b", beyond=1, far=1))
    (shown,) = build_reputations(world.core.state, "a").invites
    assert (shown.state, shown.undo) == ("quarantined", "rollcast invite enable ann")
