from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.broadcast import planner
from coordinator.core.broadcast.nodes import PlanShape
from coordinator.core.broadcast.probing import ProbeSettings
from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions import broadcasts
from coordinator.core.events.actions import PlanRelays, SendPlan, SendProbe
from coordinator.core.events.events import PeerLeft, RelaysPlanned, Tick
from coordinator.core.events.restored import Restored
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import World, announced, heartbeat, held, joined, only, settings

RATE = 1e6


class Fleet(World):
    """An origin and peers p0 .. that hold version 0."""

    def __init__(self, peers: int, **changes: Any) -> None:
        shape = PlanShape(mesh_peers_max=4, stripes=2, unknown_uplink_bytes_per_second=RATE)
        super().__init__(heartbeat_timeout_s=1e6, lease_deadline_s=1e6, **({"plan_shape": shape} | changes))
        self.names = [f"p{index}" for index in range(peers)]
        self.start(*self.names)

    def beat(self, name: str, uplink: float = 0.0, **changes: Any) -> list[SendPlan]:
        measured = {"uplink_bytes_per_second": uplink, "uplink_measured_s": 10.0} if uplink else {}
        active = None if name == "origin" else 0
        return only(self.handle(heartbeat(name, active=active, **measured, **changes)), SendPlan)

    def at(self, now: float) -> list[SendPlan]:
        self.now = now
        return only(self.handle(Tick()), SendPlan)

    def relays(self) -> set[str]:
        relay = self.core._state.relay
        return {name for name in self.names if relay.children_of(PeerId(name))}


def test_a_relay_that_drains_or_pauses_is_replaced_at_once_and_comes_back() -> None:
    fleet = Fleet(3)
    assert fleet.relays() == {"p0", "p1", "p2"}
    for state in ("draining", "paused"):
        assert fleet.beat("p1", state=state)
        assert fleet.relays() == {"p0", "p2"}
        assert fleet.beat("p1", state=state) == []
        assert fleet.beat("p1")
        assert fleet.relays() == {"p0", "p1", "p2"}


def test_new_and_slower_rates_are_planned_for_after_two_seconds() -> None:
    fleet = Fleet(3)
    for name in fleet.names:
        assert fleet.beat(name, RATE) == []
    assert fleet.at(1.9) == []
    fleet.at(2.1)
    assert fleet.beat("p0", RATE / 100) == []
    fleet.at(4.0)
    assert fleet.relays() == {"p0", "p1", "p2"}
    assert fleet.at(4.2)
    assert fleet.relays() == {"p1", "p2"}
    assert fleet.at(200.0) == []


def test_a_rate_that_changed_by_less_than_half_does_not_change_the_trees_of_a_version_under_way() -> None:
    fleet = Fleet(6)
    for name in fleet.names:
        fleet.beat(name, RATE)
    fleet.at(31.0)
    fleet.handle(announced(1))
    for second in range(40, 80):
        fleet.now = float(second)
        assert fleet.beat("p0", 0.6 * RATE) == fleet.at(float(second)) == []
    for name in fleet.names:
        fleet.handle(held(name, 1))
    fleet.beat("p0", 0.6 * RATE)
    assert fleet.at(81.0)


def test_sites_and_metered_uploads_reach_the_plan() -> None:
    for preferred in (True, False):
        world = World(lan_preferred=preferred)
        world.start()
        for name, metered in (("a", False), ("b", False), ("c", True)):
            event = joined(name)
            changed = type(event)(**{**_fields(event), "site": "s" if name != "b" else "", "metered": metered})
            world.handle(changed)
        relay = world.core._state.relay
        part = relay.assignment_of(PeerId("c"))
        assert part is not None
        assert {one.peer_id: one.lan for one in part.neighbours} == {"a": preferred, "b": False, "origin": False}
        assert relay.children_of(PeerId("c")) == ()


def _fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__slots__}


def test_in_trees_unknown_uplinks_are_probed_while_no_version_is_in_flight() -> None:
    fleet = Fleet(8, probes=ProbeSettings(bytes_max=1000, seconds_max=1.0))
    fleet.handle(announced(1))
    for name in ("origin", *fleet.names):
        fleet.beat(name)
    fleet.now = 1.0
    assert only(fleet.handle(Tick()), SendProbe) == []  # version 1 is on its way
    for name in fleet.names:
        fleet.handle(held(name, 1))
    fleet.now = 20.0
    (probe,) = only(fleet.handle(Tick()), SendProbe)
    assert probe.to_peer in {one.peer_id for one in fleet.core._state.relay.assignment_of(probe.peer_id).neighbours}
    assert only(fleet.handle(Tick()), SendProbe) == []
    fleet.beat(probe.peer_id, RATE, uplink_probe_id=probe.probe_id)
    fleet.at(40.0)  # what was learnt is planned with first
    fleet.now = 41.0
    (following,) = only(fleet.handle(Tick()), SendProbe)
    assert following.peer_id != probe.peer_id
    assert following.probe_id == probe.probe_id + 1
    fleet.handle(PeerLeft(following.peer_id, "gone"))


def test_of_a_large_fleet_some_members_at_a_time_are_considered_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "READ_A_TURN", 3)
    fleet = Fleet(8, probes=ProbeSettings(bytes_max=1000, seconds_max=1.0))
    for name in ("origin", *fleet.names):
        fleet.beat(name)
    fleet.at(1.0)  # considers the first three
    probed = []
    for now in (40.0, 80.0, 120.0, 160.0):  # no probe is answered, and the next one may begin
        fleet.now = now
        probed += [probe.peer_id for probe in only(fleet.handle(Tick()), SendProbe)]
    assert len(set(probed)) == 4
    for peer_id, considered in zip(probed, ["p2 p3 p4", "p5 p6 p7", "origin p0 p1", "p2 p3 p4"], strict=True):
        assert peer_id in considered.split()


def test_plans_after_a_restart_are_newer_than_all_before_it() -> None:
    """A peer follows no older plan than it has: it would keep dialling an origin that returned elsewhere."""
    ids = []
    for incarnation in (1, 2):
        world = World()
        world.core = CoordinatorCore(settings(), Restored(incarnation=incarnation))
        world.handle(joined("origin", role="origin"))
        ids.append([plan.plan_id for plan in only(world.handle(joined("a")), SendPlan)])
    before, after = ids
    assert before
    assert min(after) > max(before) + 1_000_000, "however often it was planned before"


def test_in_a_mesh_no_peer_is_probed() -> None:
    fleet = Fleet(3, probes=ProbeSettings(bytes_max=1000))
    for name in ("origin", *fleet.names):
        fleet.beat(name)
    fleet.now = 20.0
    assert only(fleet.handle(Tick()), SendProbe) == []


@pytest.fixture
def small_plans_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "PLANNED_IN_LINE_MAX", 3)


@pytest.mark.usefixtures("small_plans_are_large")
def test_a_large_plan_is_asked_for_and_sent_when_it_is_solved() -> None:
    fleet = Fleet(2)
    asked = fleet.handle(joined("late"))
    assert (only(asked, PlanRelays), only(asked, SendPlan)) == ([PlanRelays(1)], [])
    problem = fleet.core.relay_problem
    assert problem is not None
    problem.solve()
    sent = only(fleet.handle(RelaysPlanned(1)), SendPlan)
    assert {plan.peer_id for plan in sent} == {"origin", "p0", "p1", "late"}
    assert fleet.core.relay_problem is None
    assert fleet.handle(RelaysPlanned(1)) == []


@pytest.mark.usefixtures("small_plans_are_large")
def test_a_large_plan_is_handed_over_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that restarts sends thousands of assignments, which together would hold the loop for 0.2 s."""
    monkeypatch.setattr(planner, "HANDED_OVER_MAX", 1)
    fleet = Fleet(4)  # the plan was asked for when the third peer joined
    turns = [only(fleet.handle(RelaysPlanned(1)), SendPlan)]
    fleet.handle(PeerLeft(PeerId("p1"), "gone"))  # before its turn
    while fleet.core.state.relay.has_unsent:
        turns.append(only(fleet.handle(Tick()), SendPlan))
    assert [[plan.peer_id for plan in turn] for turn in turns] == [["origin"], ["p0"], ["p2"]]
    assert {plan.plan_id for turn in turns for plan in turn} == {turns[0][0].plan_id}


@pytest.mark.usefixtures("small_plans_are_large")
def test_a_newer_plan_replaces_what_was_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "HANDED_OVER_MAX", 2)
    fleet = Fleet(4)
    first = only(fleet.handle(RelaysPlanned(1)), SendPlan)
    fleet.handle(joined("late"))
    relay = fleet.core.state.relay
    while not fleet.core.relay_problem:
        fleet.handle(Tick())
    sent = list(first)
    sent += only(fleet.handle(RelaysPlanned(2)), SendPlan)
    while relay.has_unsent:
        sent += only(fleet.handle(Tick()), SendPlan)
    newest = {plan.peer_id: plan.part for plan in sent}
    assert set(newest) == {"origin", "p0", "p1", "p2", "p3", "late"}
    assert all(relay.assignment_of(peer_id) == part for peer_id, part in newest.items())


@pytest.mark.usefixtures("small_plans_are_large")
def test_a_plan_is_the_same_beside_the_loop_and_in_a_replay_that_solves_it_itself() -> None:
    plans = []
    for is_solved in (True, False):
        fleet = Fleet(2)
        fleet.handle(joined("late"))
        assert fleet.core.relay_problem is not None
        if is_solved:
            fleet.core.relay_problem.solve()
        plans.append(fleet.handle(RelaysPlanned(1)))
    assert plans[0] == plans[1]


@pytest.mark.usefixtures("small_plans_are_large")
def test_what_changes_while_a_plan_is_made_is_planned_after_it() -> None:
    fleet = Fleet(4)
    assert fleet.core.relay_problem is not None
    fleet.handle(PeerLeft(PeerId("p0"), "gone"))
    fleet.handle(joined("new"))
    assert only(fleet.handle(joined("other")), PlanRelays) == []  # one at a time
    sent = only(fleet.handle(RelaysPlanned(1)), SendPlan)
    assert "p0" not in {plan.peer_id for plan in sent}
    assert fleet.core.state.relay.assignment_of(PeerId("new")) is None  # it joined after the plan was asked for
    assert only(fleet.handle(Tick()), PlanRelays) == [PlanRelays(2)]
    sent = only(fleet.handle(RelaysPlanned(2)), SendPlan)
    assert {"new", "other"} <= {plan.peer_id for plan in sent}


@pytest.mark.usefixtures("small_plans_are_large")
def test_a_plan_that_another_one_has_overtaken_is_dropped() -> None:
    fleet = Fleet(3)
    fleet.handle(PeerLeft(PeerId("p0"), "gone"))
    sent = only(fleet.handle(PeerLeft(PeerId("p1"), "gone")), SendPlan)  # few enough to plan at once
    assert {plan.peer_id for plan in sent} == {"origin", "p2"}
    assert fleet.handle(RelaysPlanned(1)) == []


@pytest.mark.usefixtures("small_plans_are_large")
def test_a_plan_that_never_comes_is_asked_for_again() -> None:
    fleet = Fleet(3)
    fleet.now = 59.0
    assert only(fleet.handle(joined("p3")), PlanRelays) == []
    fleet.now = 61.0
    assert only(fleet.handle(Tick()), PlanRelays) == [PlanRelays(2)]
    assert fleet.handle(RelaysPlanned(1)) == []
    assert only(fleet.handle(RelaysPlanned(2)), SendPlan)


@pytest.mark.usefixtures("small_plans_are_large")
def test_a_plan_that_lost_what_it_continues_from_is_made_afresh_in_a_replay_too() -> None:
    fleets = [Fleet(12), Fleet(12)]
    plans = []
    for fleet, afresh in zip(fleets, (True, False), strict=True):
        fleet.handle(RelaysPlanned(1))
        fleet.handle(PeerLeft(PeerId("p0"), "gone"))
        fleet.now += 60.0
        assert only(fleet.handle(Tick()), PlanRelays) == [] or fleet.core.relay_problem is not None
        problem = fleet.core.relay_problem
        assert problem is not None
        assert problem.before is not None
        fleet.handle(RelaysPlanned(2, afresh))
        plans.append(problem.before)
    assert plans[0] is None
    assert plans[1] is not None


@pytest.mark.usefixtures("small_plans_are_large")
def test_the_rates_of_very_many_members_are_read_over_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "READ_A_TURN", 3)
    fleet = Fleet(7)
    while fleet.core.relay_problem is None:
        assert only(fleet.handle(Tick()), PlanRelays) == [] or fleet.core.relay_problem is not None
    fleet.handle(RelaysPlanned(1))
    fleet.now += 60.0
    fleet.core._broadcasts.replan(fleet.now)  # reads the origin, p0 and p1
    fleet.handle(PeerLeft(PeerId("p1"), "gone"))
    fleet.handle(PeerLeft(PeerId("p5"), "gone"))
    assert only(fleet.handle(Tick()), PlanRelays) == []
    asked = only(fleet.handle(Tick()), PlanRelays)
    problem = fleet.core.relay_problem
    assert problem is not None
    assert [node.peer_id for node in problem.nodes] == ["origin", "p0", "p1", "p2", "p3", "p4", "p6"]
    sent = only(fleet.handle(RelaysPlanned(asked[0].number)), SendPlan)
    assert "p1" not in {plan.peer_id for plan in sent}
