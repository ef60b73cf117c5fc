from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.broadcast.planner import PlanShape, RelayNode, RelayPlanner
from coordinator.core.events.actions import Assignment, Neighbour, SendPlan, StripeAssignment
from rollcast.wire.ids import PeerId, PlanId, StripeId

RATE = 1e6


def node(name: str, uplink: float | None = RATE, *, dialable: bool = True, may_relay: bool = True) -> RelayNode:
    return RelayNode(PeerId(name), "peer", f"{name}:1" if dialable else "", may_relay, uplink)


def origin(uplink: float | None = RATE) -> RelayNode:
    return RelayNode(PeerId("origin"), "origin", "origin:1", True, uplink)


def planner(*, mesh_peers_max: int = 8, stripes: int = 4, after: int = 0) -> RelayPlanner:
    return RelayPlanner(PlanShape(mesh_peers_max=mesh_peers_max, stripes=stripes), after)


def at(name: str, role: str = "peer") -> Neighbour:
    """Return a neighbour that we dial."""
    return Neighbour(PeerId(name), role, f"{name}:1", True)


def dials_us(name: str, role: str = "peer") -> Neighbour:
    return Neighbour(PeerId(name), role, "", False)


def told(plans: list[SendPlan]) -> list[str]:
    return [plan.peer_id for plan in plans]


def test_only_changed_parts_are_sent() -> None:
    plan = planner()
    assert plan.replan([node("a")]) == []
    assert (plan.mode, plan.stripe_count) == ("none", 0)
    assert plan.replan([origin(), node("a")]) == [
        SendPlan(PeerId("origin"), PlanId(1), Assignment((dials_us("a"),), list_children=(0,), direct_copies=True)),
        SendPlan(PeerId("a"), PlanId(1), Assignment((at("origin", "origin"),), parents=(0,))),
    ]
    sent = plan.replan([origin(), node("a"), node("b")])
    assert told(sent) == ["origin", "a", "b"]
    assert sent[1].part.stripes == (StripeAssignment(StripeId(1), (0,), pytest.approx(RATE / 2)),)
    assert plan.replan([origin(), node("a"), node("b")]) == []
    assert (plan.mode, plan.stripe_count, plan.plan_id) == ("mesh", 2, 2)
    assert plan.parents_of(PeerId("b")) == ("a", "origin")
    assert plan.children_of(PeerId("b")) == ("a",)
    assert plan.children_of(PeerId("origin")) == ("a", "b")
    assert plan.parents_of(PeerId("origin")) == plan.parents_of(PeerId("stranger")) == ()


def test_rates_that_moved_little_change_no_plan() -> None:
    plan = planner(mesh_peers_max=4)
    nodes = [node(f"p{index}") for index in range(12)]
    plan.replan([origin(), *nodes])
    wavering = [node(f"p{index}", RATE * (0.8 + 0.04 * index)) for index in range(12)]
    assert plan.replan([origin(RATE * 1.2), *wavering]) == []
    assert plan.mode == "trees"


def test_what_moved_enough_to_plan_again() -> None:
    plan = planner()
    plan.replan([origin(), node("a"), node("b", None)])
    rates = {"a": (1.0, 1.2, 0.7, 1.5, 0.4), "b": (1.0,)}
    drifts = {name: [plan.drift(PeerId(name), RATE * share, 1.0) for share in shares] for name, shares in rates.items()}
    assert drifts == {"a": ["none", "none", "moved", "moved", "slowed"], "b": ["learned"]}
    assert plan.drift(PeerId("b"), None, 0.0) == plan.drift(PeerId("stranger"), RATE, 1.0) == "none"


def test_rates_that_are_hardly_trusted_count_little() -> None:
    plan = RelayPlanner(PlanShape(unknown_uplink_bytes_per_second=RATE))
    fast = replace(node("a", 100 * RATE), uplink_confidence=0.0)
    plan.replan([origin(), fast, node("b"), node("c")])
    assert plan.drift(PeerId("a"), 100 * RATE, 0.0) == "none"
    assert plan.drift(PeerId("a"), 100 * RATE, 1.0) == "moved"


def test_a_fleet_that_varies_around_the_limit_does_not_flap_between_modes() -> None:
    plan = planner(mesh_peers_max=8)
    modes = []
    for count in (8, 9, 8, 7, 6, 8, 9):
        plan.replan([origin(), *(node(f"p{index}") for index in range(count))])
        modes.append(plan.mode)
    assert modes == ["mesh", "trees", "trees", "trees", "mesh", "mesh", "trees"]


def test_a_peer_may_receive_from_its_sources_of_now_and_of_just_before() -> None:
    plan = planner()
    a, b, c = node("a"), node("b"), node("c")

    def sources_of_c() -> set[str]:
        return {name for name in ("origin", "a", "b", "d") if plan.may_receive_from(PeerId("c"), PeerId(name))}

    assert sources_of_c() == set()
    plan.replan([origin(), a, b, c])
    assert sources_of_c() == {"origin", "a", "b"}
    plan.replan([origin(), a, c])
    assert sources_of_c() == {"origin", "a", "b"}
    plan.replan([origin(), a, c, node("d")])
    assert sources_of_c() == {"origin", "a", "d"}
    plan.replan([origin(), a])
    assert sources_of_c() == set()


def test_a_new_session_is_sent_its_assignment_again() -> None:
    plan = planner()
    plan.replan([origin(), node("a")])
    plan.discard(PeerId("a"))
    assert told(plan.replan([origin(), node("a")])) == ["a"]


def test_without_its_origin_a_plan_stays_until_it_returns() -> None:
    plan = planner()
    plan.replan([origin(), node("a"), node("b")])
    assert plan.replan([node("a"), node("b")]) == []
    assert told(plan.replan([node("a"), node("b"), origin()])) == ["origin"]
    assert plan.plan_id == 2


def test_plans_are_counted_from_this_coordinator_on_whatever_ids_came_before() -> None:
    plan = planner(after=1 << 32)
    plan.replan([origin(), node("a")])
    assert (plan.plan_id, plan.plans_made) == ((1 << 32) + 1, 1)


def test_another_origin_takes_over() -> None:
    plan = planner(mesh_peers_max=2)
    nodes = [node(f"p{index}") for index in range(6)]
    plan.replan([origin(), *nodes])
    other = RelayNode(PeerId("second"), "origin", "second:1", True, RATE)
    plan.replan([other, *nodes])
    plan.validate()
    assert plan.plan is not None
    assert plan.plan.root == "second"
    assert all(stripe.parents.keys() == {one.peer_id for one in nodes} for stripe in plan.plan.stripes)


changes = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(["there", "dialable", "may_relay", "rate"])), max_size=10
)


@settings(max_examples=40, deadline=None)
@given(changes)
def test_parts_agree_with_each_other_whatever_happens(drawn: list[tuple[int, str]]) -> None:
    """Links have two ends of which one dials, and children list their parents."""
    plan = planner(mesh_peers_max=6, stripes=3)
    nodes = {f"p{index}": node(f"p{index}", dialable=index % 3 > 0) for index in range(8)}
    parts: dict[PeerId, Assignment] = {}
    for index, change in drawn:
        name = f"p{index}"
        one = nodes.get(name, node(name))
        match change:
            case "there":
                nodes.pop(name, None) if name in nodes else nodes.update({name: one})
            case "dialable":
                nodes[name] = replace(one, address="" if one.address else f"{name}:1")
            case "may_relay":
                nodes[name] = replace(one, may_relay=not one.may_relay)
            case _:
                nodes[name] = replace(one, uplink_bytes_per_second=RATE / 10)
        parts |= {sent.peer_id: sent.part for sent in plan.replan([origin(), *nodes.values()])}
        parts = {peer_id: part for peer_id, part in parts.items() if peer_id == "origin" or peer_id in nodes}
        plan.validate()
        _agree(parts)


def _agree(parts: dict[PeerId, Assignment]) -> None:
    for peer_id, part in parts.items():
        for one in part.neighbours:
            (back,) = [other for other in parts[one.peer_id].neighbours if other.peer_id == peer_id]
            assert back.we_dial != one.we_dial
            assert bool(one.address) == one.we_dial
        for index in {index for stripe in part.stripes for index in stripe.children}:
            child = parts[part.neighbours[index].peer_id]
            assert peer_id in [child.neighbours[above].peer_id for above in child.parents]
        for one in part.fallbacks:
            assert one.we_dial
            assert one.peer_id not in [other.peer_id for other in part.neighbours]
