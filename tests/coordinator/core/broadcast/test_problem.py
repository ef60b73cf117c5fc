"""Test that a relay plan follows from its problem alone, whichever thread solves it, and when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from coordinator.core.broadcast.nodes import PlanShape, RelayNode
from coordinator.core.broadcast.problem import RelayProblem
from rollcast.wire.ids import PeerId

RATE = 1e6


def members(count: int) -> list[RelayNode]:
    peers = [RelayNode(PeerId(f"p{index}"), "peer", f"p{index}:1", True, RATE) for index in range(count)]
    return [RelayNode(PeerId("origin"), "origin", "origin:1", True, 4 * RATE), *peers]


def with_uplinks(nodes: list[RelayNode], factors: dict[int, float]) -> list[RelayNode]:
    return [
        replace(node, uplink_bytes_per_second=(node.uplink_bytes_per_second or RATE) * factors.get(index, 1.0))
        for index, node in enumerate(nodes)
    ]


def problem(nodes: list[RelayNode], before: RelayProblem | None = None) -> RelayProblem:
    uplinks = {node.peer_id: node.uplink_bytes_per_second or RATE for node in nodes}
    shape = PlanShape(mesh_peers_max=8, stripes=2)
    return RelayProblem(nodes, nodes[0], uplinks, shape, None if before is None else before.solve())


@pytest.mark.parametrize(("peers", "mode"), [(6, "mesh"), (40, "trees")])
def test_the_solution_is_the_same_in_another_thread_and_computed_once(peers: int, mode: str) -> None:
    here, elsewhere = problem(members(peers)), problem(members(peers))
    with ThreadPoolExecutor(1) as pool:
        solved = pool.submit(elsewhere.solve).result()
    assert here.solve() == solved
    assert elsewhere.solve() is solved
    assert (solved.plan.mode, list(solved.parts)) == (mode, [node.peer_id for node in elsewhere.nodes])


def test_a_plan_continues_from_the_one_before_and_leaves_it_as_it_was() -> None:
    first = problem(members(40))
    kept = problem(members(40)).solve()
    second = problem(members(40)[:-1], first)
    edges = {(stripe.stripe, edge) for stripe in first.solve().plan.stripes for edge in stripe.parents.items()}
    again = {(stripe.stripe, edge) for stripe in second.solve().plan.stripes for edge in stripe.parents.items()}
    assert len(again - edges) < 10, "few edges change when one member leaves"
    assert first.solve() == kept


def test_trees_are_grown_anew_once_many_uplinks_differ_from_those_they_were_grown_for() -> None:
    unknown = problem(members(40))
    few, many = (with_uplinks(members(40), dict.fromkeys(range(1, 1 + count), 0.2)) for count in (8, 16))
    assert problem(few, unknown).solve().plan != problem(few).solve().plan, "most edges are kept"
    after_few = problem(few, unknown)
    assert problem(many, after_few).solve().plan == problem(many).solve().plan


def test_uplinks_that_change_little_by_little_are_compared_with_those_the_trees_were_grown_for() -> None:
    nodes, before = members(40), problem(members(40))
    for step in range(1, 4):
        now = with_uplinks(nodes, dict.fromkeys(range(1, 21), 0.8**step))
        if step < 2:
            before = problem(now, before)
    assert problem(now, before).solve().plan == problem(now).solve().plan


def test_a_shrinking_fleet_returns_to_a_mesh_late() -> None:
    trees = problem(members(9))
    assert trees.solve().plan.mode == "trees"
    assert problem(members(8), trees).solve().plan.mode == "trees"
    assert problem(members(8)).solve().plan.mode == "mesh"
    assert problem(members(6), trees).solve().plan.mode == "mesh"
