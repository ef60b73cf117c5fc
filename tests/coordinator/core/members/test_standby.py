"""Who is switched off stays so over a coordinator's restart, unless nobody else comes back."""

from __future__ import annotations

from coordinator.core.events.actions import Note, SendLeases, TellActivation
from coordinator.core.events.events import BatchRequested, StandbyRestored, Tick
from coordinator.core.events.operator_events import PeerPinned
from coordinator.core.events.prices import ActivationSettings
from coordinator.core.members import standby
from rollcast.wire.ids import PeerId, Step
from tests.coordinator.core_world import World, announced, held, joined, only, wants

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
OFF = StandbyRestored({A: ("off: too dear", False), B: ("off: too dear", True)})


def world(mode: str = "act") -> World:
    made = World(activation=ActivationSettings(mode=mode))  # type: ignore[arg-type]
    made.tell(OFF)
    made.tell(joined("origin", role="origin"))
    made.tell(announced(0))
    return made


def test_what_is_kept_comes_back_and_pins_are_orders() -> None:
    made = world()
    made.tell(PeerPinned(C, "off"))
    kept = made.core.standby()
    assert kept == dict(OFF.peers)
    assert standby.from_json(standby.to_json(kept)) == OFF
    assert standby.from_json("{}") == StandbyRestored({})


def test_a_peer_that_was_off_is_told_so_and_given_nothing() -> None:
    made = world()
    told = made.tell(joined("a"))
    assert TellActivation(A, False, "off: too dear") in told
    made.tell(held("a", 0))
    made.tell(joined("c"))
    made.tell(held("c", 0))
    assert not only(made.tell(wants("a", 2)), SendLeases)
    assert only(made.tell(wants("c", 2)), SendLeases)


def test_they_are_on_where_nobody_else_came_back() -> None:
    made = world()
    for name in ("a", "b"):
        made.tell(joined(name))
        made.tell(held(name, 0))
        made.tell(wants(name, 2))
    made.tell(BatchRequested(Step(0)))
    made.now = 4.0
    assert not only(made.tell(Tick()), TellActivation)  # there is still hope
    for made.now in (8.0, 12.0, 16.0):
        for name in ("a", "b", "origin"):
            made.tell(wants(name, 2))
    made.now = 16.5
    actions = made.tell(Tick())
    reason = "on: nobody of those that were on came back"
    assert only(actions, TellActivation) == [TellActivation(A, True, reason), TellActivation(B, True, reason)]
    assert Note("activated", A, reason) in actions
    assert {one.peer_id for one in only(actions, SendLeases)} == {A, B}
    assert made.core.standby() == {}


def test_nobody_is_off_where_no_model_acts() -> None:
    made = world("advise")
    assert made.core.standby() == {}
    assert not only(made.tell(joined("a")), TellActivation)
