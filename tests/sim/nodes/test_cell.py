"""Simulate runs whose workers are in cells, with kills of cells, of their coordinators and of their uplinks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rollcast.sim.fleet import Cell, Fleet
from rollcast.sim.settings import FleetSettings
from rollcast.sim.simulation import _end


def fleet_of(cells: int, seed: int, **changes: Any) -> Fleet:
    values: dict[str, Any] = {"peers": 1, "cells": cells, "cell_peers": 2, "groups_per_step": 2 * max(1, cells // 2)}
    return Fleet(FleetSettings(**(values | changes)), seed)


def judged(fleet: Fleet) -> None:
    """Check that neither the head's judge nor that of a cell has found a broken rule."""
    found = [
        one for ground in (fleet.ground, *(cell.ground for cell in fleet.cells)) for one in ground.oracle.violations
    ]
    assert not found, "\n".join(map(str, found))


def delivered(cell: Cell) -> int:
    return int(cell.coordinator.tables.counts().dropped.get("delivered", 0))


def uploaded(fleet: Fleet, cell: Cell) -> int:
    """Return how many of the rollouts that the head has stored came from a cell."""
    core = fleet.coordinator.core
    assert core is not None
    return core.state.members.reputation(cell.uplink.peer_id).accepted


def ended(fleet: Fleet) -> None:
    """End the head's run; check that every cell has ended too, with nothing left open."""
    _end(fleet)
    judged(fleet)
    for cell in fleet.cells:
        assert cell.coordinator.tables.counts().open == 0, cell.uplink.name


@pytest.mark.sim
def test_two_cells_and_a_peer_train_a_run_and_end_with_it() -> None:
    fleet = fleet_of(2, 1)
    fleet.run(120.0)
    judged(fleet)
    assert fleet.ground.oracle.steps > 20
    for cell in fleet.cells:
        assert delivered(cell) > 20
        assert uploaded(fleet, cell) >= delivered(cell)
    ended(fleet)


@pytest.mark.sim
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_ten_cells_lose_nothing_when_their_processes_are_killed_at_random(seed: int) -> None:
    fleet, random = fleet_of(10, seed, peers=0, cell_peers=1), Random(seed)
    for _ in range(16):
        fleet.run(random.uniform(1.0, 6.0))
        cell = random.choice(fleet.cells)
        process = random.choice(cell.processes)
        killed = cell.processes if random.random() < 0.25 else [process]
        for one in killed:
            fleet.down(one, random.uniform(0.5, 12.0))
        judged(fleet)
    fleet.run(40.0)
    judged(fleet)
    assert fleet.ground.oracle.steps > 15
    for cell in fleet.cells:
        assert uploaded(fleet, cell) >= delivered(cell) > 0
    ended(fleet)


@pytest.mark.sim
def test_a_head_that_is_killed_goes_on_with_its_cells() -> None:
    fleet = fleet_of(3, 4, peers=0)
    for _ in range(4):
        fleet.run(15.0)
        fleet.down(fleet.coordinator, 2.0)
    fleet.run(30.0)
    judged(fleet)
    assert fleet.ground.oracle.steps > 20
    ended(fleet)
