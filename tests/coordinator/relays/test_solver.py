"""Test plans that are solved in a process of their own: they continue one another, and survive its loss."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from coordinator.relays import solver as module
from coordinator.relays import worker
from coordinator.relays.solver import WORKER_COMMAND, RelaySolver
from tests.coordinator.relays.test_packing import fleet, problem


def test_the_command_runs_the_worker() -> None:
    assert WORKER_COMMAND[-1] == worker.__name__


async def test_plans_continue_in_the_process_and_begin_afresh_in_a_new_one() -> None:
    solver, members = RelaySolver(), fleet(60)
    try:
        first, expected = problem(members, None), problem(members, None)
        assert await solver.solve(first) is False
        assert first.solve().plan == expected.solve().plan

        second, expected = problem(members[:-1], first.solve()), problem(members[:-1], expected.solve())
        assert await solver.solve(second) is False
        assert second.solve().parts == expected.solve().parts

        assert solver.pid is not None
        os.kill(solver.pid, signal.SIGKILL)
        third = problem(members, second.solve())
        assert await solver.solve(third) is True
        assert third.solve().plan == problem(members, None).solve().plan
        assert third.before is None
    finally:
        await solver.close()
    assert solver.pid is None


async def test_a_plan_that_was_overtaken_is_not_continued() -> None:
    solver, members = RelaySolver(), fleet(20)
    try:
        first, dropped = problem(members, None), problem(members[:-1], None)
        assert await solver.solve(first) is False
        assert await solver.solve(dropped) is False
        assert await solver.solve(problem(members, first.solve())) is True  # the process has the dropped one
    finally:
        await solver.close()


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit('no room')",
        'print(\'{"ready": true}\', flush=True); input(); print(\'{"data": "!"}\', flush=True); input()',
    ],
)
async def test_without_a_working_process_there_is_no_plan(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOLVE_TIMEOUT_S", 5.0)
    solver = RelaySolver([sys.executable, "-c", program])
    assert await solver.solve(problem(fleet(6), None)) is None
    assert solver.pid is None
