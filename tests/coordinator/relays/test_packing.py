"""Test that a solution read from messages equals the one that was solved, however the fleet changed before it."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from coordinator.core.broadcast.nodes import PlanShape, RelayNode
from coordinator.core.broadcast.problem import RelayProblem, RelaySolution
from coordinator.relays.packing import (
    PARTS_A_MESSAGE,
    ProblemReader,
    SolutionReader,
    pack_problem,
    pack_shape,
    pack_solution,
    unpack_shape,
)
from rollcast.wire.address_scope import Scope
from rollcast.wire.ids import PeerId

SHAPE = PlanShape(mesh_peers_max=8, stripes=4, mirrors=("https://mirror.example/",))


def fleet(count: int, seed: int = 0) -> list[RelayNode]:
    """Return an origin and peers of many kinds: behind routers, in sites, slow, metered, with circuits."""
    rng = random.Random(seed)
    peers = [
        RelayNode(
            PeerId(f"p{index}"),
            "peer",
            f"p{index}:1" if rng.random() < 0.6 else "",
            rng.random() < 0.9,
            rng.choice((None, 1e6, 4e6)),
            downlink_bytes_per_second=rng.choice((None, None, 5e5)),
            metered=rng.random() < 0.1,
            site=f"site-{index % 7}" if rng.random() < 0.3 else "",
            hole=rng.randrange(3),
            avoid=frozenset({PeerId("p1"), PeerId("p2")}),
            circuits=("/ip4/192.0.2.1/p2p-circuit",) if rng.random() < 0.2 else (),
            local_address=f"10.0.0.{index % 200}:1",
            home=rng.choice((Scope.PUBLIC, Scope.PRIVATE)),
        )
        for index in range(count)
    ]
    return [RelayNode(PeerId("origin"), "origin", "origin:1", True, 4e7), *peers]


def problem(nodes: list[RelayNode], before: RelaySolution | None) -> RelayProblem:
    uplinks = {node.peer_id: node.uplink_bytes_per_second or 5e5 for node in nodes}
    return RelayProblem(nodes, nodes[0], uplinks, SHAPE, before)


def test_settings_return_as_they_were() -> None:
    assert unpack_shape(pack_shape(SHAPE)) == SHAPE


@pytest.mark.parametrize("count", [5, 40, 2 * PARTS_A_MESSAGE + 3])
def test_solutions_of_a_changing_fleet_arrive_as_they_were_solved(count: int) -> None:
    nodes = fleet(count)
    faster = [
        replace(node, uplink_bytes_per_second=9e6) if index % 5 == 0 else node for index, node in enumerate(nodes)
    ]
    fleets = [nodes, nodes[:-1], [*nodes, *fleet(count + 3)[count + 1 :]], faster, faster]
    here: RelaySolution | None = None  # solved in this process
    there: RelaySolution | None = None  # in the other one
    arrived: RelaySolution | None = None  # what the coordinator has of it
    reader = ProblemReader(SHAPE)
    for members in fleets:
        expected = problem(members, here)
        here = expected.solve()
        asked = problem(members, arrived)
        for data in pack_problem(asked, continues=arrived is not None):
            if (found := reader.take(data, there)) is not None:
                there = found.solve()
                messages = list(pack_solution(found))
        assert there == here
        solution = SolutionReader(asked, arrived)
        results = [solution.take(message) for message in messages]
        assert results[:-1] == [None] * (len(messages) - 1)
        arrived = results[-1]
        assert arrived is not None
        assert (arrived.plan, arrived.parts, arrived.continuation) == (here.plan, here.parts, None)
        assert [list(one.parents) for one in arrived.plan.stripes] == [list(one.parents) for one in here.plan.stripes]
        assert list(arrived.parts) == list(here.parts)


def test_assignments_that_stay_as_they_were_are_not_sent_again() -> None:
    first = problem(fleet(40), None)
    same = problem(fleet(40), first.solve())
    same.solved(first.solve())
    assert [msgspec.msgpack.decode(message)[0] for message in pack_solution(same)] == ["tree"] * 5 + ["solved"]
