"""Test plans for members behind one access link: one copy comes in, and only where its members are linked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coordinator.core.broadcast.nodes import Plan, RelayNode
from coordinator.core.broadcast.planner import PlanShape, RelayPlanner
from coordinator.core.broadcast.sites import as_units, find_sites
from rollcast.wire.address_scope import Scope
from rollcast.wire.ids import PeerId
from rollcast.wire.links.frames import DIRECT_STRIPE

MBIT = 1e6 / 8


def node(name: str, mbit_s: float, *, site: str = "", role: str = "peer", down: float | None = None) -> RelayNode:
    downlink = None if down is None else down * MBIT
    return RelayNode(
        PeerId(name), role, f"{name}:1", True, mbit_s * MBIT, downlink_bytes_per_second=downlink, site=site
    )


ROOT = node("origin", 50, role="origin")
HOMES = [node(name, rate) for name, rate in (("x", 50), ("y", 20), ("z", 20))]


def linked(members: Sequence[RelayNode], apart: Sequence[frozenset[str]] = ()) -> list[RelayNode]:
    """Return the members with links to each other, except between those pairs."""
    names = [one.peer_id for one in members]
    return [
        replace(
            one,
            site_links=frozenset(
                other for other in names if other != one.peer_id and {one.peer_id, other} not in apart
            ),
        )
        for one in members
    ]


def site_of(count: int, **changes: float) -> list[RelayNode]:
    return [node(f"s{number}", 100, site="office", **changes) for number in range(count)]


def planned(nodes: Sequence[RelayNode], root: RelayNode = ROOT, **shape: int) -> Plan:
    planner = RelayPlanner(PlanShape(**shape))
    planner.replan([root, *nodes])
    planner.validate()
    assert planner.plan is not None
    return planner.plan


def copies_in(plan: Plan, inside: set[str]) -> float:
    """Return how many copies of the version enter these members from others."""
    return sum(
        stripe.share * sum(child in inside and parent not in inside for child, parent in stripe.parents.items())
        for stripe in plan.stripes
    )


@pytest.mark.parametrize("shape", [{}, {"mesh_peers_max": 2}])
@pytest.mark.parametrize("count", [2, 8, 30])
def test_one_copy_of_each_stripe_comes_into_a_site(count: int, shape: dict[str, int]) -> None:
    office = linked(site_of(count))
    plan = planned([*HOMES, *office], **shape)
    inside = {one.peer_id for one in office}
    assert copies_in(plan, inside) == pytest.approx(1.0)
    assert all(inside <= stripe.parents.keys() for stripe in plan.stripes)
    assert all(stripe.stripe != DIRECT_STRIPE for stripe in plan.stripes)


def test_the_rate_is_bound_by_the_access_link() -> None:
    """Eight times the uplink of one would be 13 times as much as the shared link has."""
    office, root = (
        linked([node(f"s{number}", 10, site="office") for number in range(8)]),
        node("origin", 100, role="origin"),
    )
    plan = planned([*HOMES, *office], root)
    assert plan.bytes_per_second <= (100 + 50 + 20 + 20 + 10) / 4 * MBIT


def test_stripes_come_in_through_different_members() -> None:
    office = linked(site_of(8))
    plan = planned([*HOMES, *office])
    inside = {one.peer_id for one in office}
    gates = {
        child
        for stripe in plan.stripes
        for child, parent in stripe.parents.items()
        if child in inside and parent not in inside
    }
    assert len(gates) == len(plan.stripes) > 1


def test_members_without_links_to_each_other_are_planned_as_ever() -> None:
    office = site_of(8)
    assert planned([*HOMES, *office]) == planned([*HOMES, *(replace(one, site="") for one in office)])


def test_members_of_the_origins_own_site_are_planned_as_ever() -> None:
    root, office = replace(ROOT, site="office"), linked(site_of(4))
    assert find_sites(office, root, {}) == []


def test_a_private_network_and_the_only_site_are_planned_as_ever() -> None:
    office = linked(site_of(4))
    uplinks = {one.peer_id: 100 * MBIT for one in (*office, *HOMES)}
    assert len(find_sites([*office, *HOMES], ROOT, uplinks)) == 1
    assert find_sites(office, ROOT, uplinks) == []
    assert find_sites([*(replace(one, home=Scope.PRIVATE) for one in office), *HOMES], ROOT, uplinks) == []


def test_one_that_is_linked_to_none_is_planned_apart() -> None:
    office = site_of(4)
    lone = office[3].peer_id
    office = linked(office, [frozenset({lone, one.peer_id}) for one in office[:3]])
    uplinks = {one.peer_id: 100 * MBIT for one in office}
    (site,) = find_sites([*office, *HOMES], ROOT, uplinks)
    assert [one.peer_id for one in site.members] == ["s0", "s1", "s2"]
    assert [one.peer_id for one in as_units(office, [site])] == ["s0", "s3"]


def test_only_members_that_are_linked_to_all_others_pass_on() -> None:
    office = linked(site_of(4), [frozenset({"s0", "s1"})])
    plan = planned([*HOMES, *office])
    inside = {one.peer_id for one in office}
    assert {parent for stripe in plan.stripes for parent in stripe.parents.values() if parent in inside} <= {"s2", "s3"}


def test_a_site_with_a_slow_access_link_pulls_through_one_member() -> None:
    office = linked(site_of(4, down=5))
    plan = planned([*HOMES, *office])
    assert plan.pullers == {"s0", "s1", "s2", "s3"}
    inside = {one.peer_id for one in office}
    assert 0.5 < copies_in(plan, inside) <= 1.0, "the origin sends no copies of its own to those that pull"


def test_the_plan_stays_when_links_that_it_does_not_use_are_closed() -> None:
    """After the first plan, members that pass nothing on are linked only to those that do."""
    office = linked(site_of(8))
    before = planned([*HOMES, *office])
    inside = {one.peer_id for one in office}
    relays = {parent for stripe in before.stripes for parent in stripe.parents.values() if parent in inside}
    kept = [
        replace(one, site_links=frozenset(o for o in inside - {one.peer_id} if o in relays or one.peer_id in relays))
        for one in office
    ]
    assert planned([*HOMES, *kept]) == before
