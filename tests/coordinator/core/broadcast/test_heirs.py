"""Test who takes the place of a relay that fails, and how its parent and its siblings learn it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.broadcast.assignments import AssignmentMaker, children_of
from coordinator.core.broadcast.heirs import find_heirs
from coordinator.core.broadcast.nodes import Plan, PlanShape, RelayNode, Stripe
from coordinator.core.broadcast.trees import plan_trees
from rollcast.wire.ids import PeerId, StripeId

ROOT, A, B, C, D, E, F = (PeerId(name) for name in ("0", "a", "b", "c", "d", "e", "f"))
#: A is the root of the stripe; B (two leaves), C and D (one each) pass on below it.
TREE = {
    A: ROOT,
    B: A,
    C: A,
    D: A,
    E: A,
    F: B,
    PeerId("g"): B,
    PeerId("h"): C,
    PeerId("i"): D,
}


def node(peer_id: PeerId, uplink: float = 100.0) -> RelayNode:
    return RelayNode(peer_id, "origin" if peer_id == ROOT else "peer", f"{peer_id}:1", True, uplink)


NODES = {peer_id: node(peer_id) for peer_id in (ROOT, *TREE)}


def test_the_strongest_relays_below_are_heirs_and_serve_the_other_relays() -> None:
    found = find_heirs(children_of(TREE), NODES)
    assert found.heirs == {ROOT: [(A, B), (A, C)]}
    assert found.adopted == {B: [D]}
    assert found.guardians == {B: ROOT, C: ROOT}


def test_a_relay_with_leaves_alone_has_no_heir() -> None:
    assert find_heirs(children_of({A: ROOT, B: A, C: A}), NODES).heirs == {}


def test_an_heir_reaches_the_grandparent_and_those_that_it_adopts() -> None:
    nodes = NODES | {B: replace(NODES[B], given_up=frozenset({ROOT})), C: replace(NODES[C], given_up=frozenset({B}))}
    found = find_heirs(children_of(TREE), nodes)
    assert found.heirs == {ROOT: [(A, C), (A, D)]}
    assert found.adopted == {D: [B]}


def test_assignments_name_heirs_and_keep_their_links_open() -> None:
    plan = Plan(ROOT, "trees", (Stripe(StripeId(1), TREE, 1.0),), 80.0, TREE)
    made = AssignmentMaker(PlanShape(), {}).make(list(NODES.values()), plan)
    names = {peer_id: [one.peer_id for one in part.neighbours] for peer_id, part in made.items()}
    (at_root,), (at_heir,), (at_other,) = (made[one].stripes for one in (ROOT, B, C))
    assert [(names[ROOT][child], names[ROOT][heir]) for child, heir in at_root.heirs] == [(A, B), (A, C)]
    assert [names[B][index] for index in at_heir.adopted] == [D]
    assert names[B][at_heir.guardian] == ROOT
    assert (at_other.adopted, at_other.guardian) == ((), -1)
    assert B in names[D]
    assert D in names[B]
    assert B in names[ROOT]
    assert names[E] == [A], "a leaf has no further links"


uplinks = st.lists(st.sampled_from([5.0, 20.0, 50.0, 100.0, 400.0]), min_size=26, max_size=60)


@settings(max_examples=25, deadline=None)
@given(uplinks)
def test_heirs_are_relays_below_the_child_that_they_replace(rates: list[float]) -> None:
    root = node(ROOT)
    nodes = [node(PeerId(f"p{index:02}"), rate) for index, rate in enumerate(rates)]
    of = {one.peer_id: one.uplink_bytes_per_second or 0.0 for one in (root, *nodes)}
    plan, _ = plan_trees(nodes, root, of, 4, None)
    by_id = {one.peer_id: one for one in (root, *nodes)}
    for stripe in plan.stripes:
        children = children_of(stripe.parents)
        found = find_heirs(children, by_id)
        for grandparent, pairs in found.heirs.items():
            for child, heir in pairs:
                assert (stripe.parents[child], stripe.parents[heir]) == (grandparent, child)
                assert heir in children
        served = [one for adopted in found.adopted.values() for one in adopted]
        assert len(served) == len(set(served))
        for heir, adopted in found.adopted.items():
            assert {stripe.parents[one] for one in adopted} == {stripe.parents[heir]}
            assert heir not in adopted
