from __future__ import annotations

import asyncio
import threading

from capacity.model.demand import Demand
from capacity.replan.events import Problem, ReplanSettings, Solved
from coordinator.core.events.events import ActivationPlanFailed, ActivationPlanned
from coordinator.shell.activation_solver import ActivationPlanner

DEMAND = Demand(
    rollouts_per_step=1, t_train_s=1.0, staleness_limit=4, update_bytes=1.0, learner_upload_bytes_per_second=1.0
)


def problem(number: int = 1, **changes: float) -> Problem:
    return Problem(number=number, trigger="", demand=DEMAND, workers=(), settings=ReplanSettings(**changes))


async def test_the_answer_is_an_event() -> None:
    planner = ActivationPlanner(lambda one: Solved(number=one.number))
    assert await planner.solve(problem(3)) == ActivationPlanned(Solved(number=3))


async def test_a_bug_of_the_planner_is_no_end_of_the_run() -> None:
    def broken(_: Problem) -> Solved:
        raise ValueError("oh")

    failed = await ActivationPlanner(broken).solve(problem())
    assert failed == ActivationPlanFailed(1, "the planner failed: ValueError('oh')")


async def test_one_at_a_time_within_a_deadline() -> None:
    go_on = threading.Event()

    def slow(one: Problem) -> Solved:
        go_on.wait(10.0)
        return Solved(number=one.number)

    planner = ActivationPlanner(slow)
    late = await planner.solve(problem(1, solve_timeout_s=0.0))  # a second at least
    assert late == ActivationPlanFailed(1, "the planner took longer than 1 s")
    assert isinstance(await planner.solve(problem(2)), ActivationPlanFailed)
    go_on.set()
    await asyncio.sleep(0.1)
    assert await planner.solve(problem(3)) == ActivationPlanned(Solved(number=3))
