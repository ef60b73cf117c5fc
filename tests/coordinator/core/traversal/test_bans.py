from __future__ import annotations

import pytest

from coordinator.core.events.actions import SendToPeer
from coordinator.core.events.events import Tick
from coordinator.core.events.operator_events import PeerBanned, PeerEnabled
from coordinator.core.traversal.bans import LOOK_EVERY_S
from rollcast.wire import limits
from rollcast.wire.ids import PeerId
from tests.coordinator.core.traversal.world import ReachWorld
from tests.coordinator.core_world import only

Told = dict[str, tuple[list[str], list[str]]]


def told(sent: list[SendToPeer]) -> Told:
    """Who is told of whom: banned, and banned no more."""
    messages = {one.peer_id: one.message.banned for one in sent if one.message.WhichOneof("body") == "banned"}
    return {peer_id: (list(one.peer_ids), list(one.pardoned)) for peer_id, one in messages.items()}


def later(here: ReachWorld) -> Told:
    here.now += LOOK_EVERY_S
    return told(only(here.tell(Tick()), SendToPeer))


def test_all_are_told_soon_who_was_sent_away_and_who_may_come_again() -> None:
    here = ReachWorld()
    for name in ("a", "b"):
        here.join(name)
    assert later(here) == {}
    here.tell(PeerBanned(PeerId("b"), "b", "it lies"))
    assert later(here) == {"origin": (["b"], []), "a": (["b"], [])}
    assert later(here) == {}
    assert told(only(here.join("c"), SendToPeer)) == {"c": (["b"], [])}
    here.tell(PeerEnabled(PeerId("b"), ""))
    assert later(here)["a"] == ([], ["b"])
    assert told(only(here.join("d"), SendToPeer)) == {}


def test_those_banned_longest_ago_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BANNED_MAX", 2)
    here = ReachWorld()
    for name in ("x", "y"):
        here.tell(PeerBanned(PeerId(name), name, ""))
    assert later(here) == {"origin": (["x", "y"], [])}
    here.tell(PeerBanned(PeerId("z"), "z", ""))
    assert later(here) == {"origin": (["z"], ["x"])}


def test_a_quarantined_member_still_receives() -> None:
    here = ReachWorld()
    here.join("a")
    here.core.state.members.standing(PeerId("a")).quarantined = "sent 3 corrupt chunks"
    here.core.state.members.worker_count -= 1
    assert later(here) == {}
