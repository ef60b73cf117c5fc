"""Test plans that are solved off the event loop: activation, and previews of changes."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from capacity.model.demand import Demand
from capacity.replan.events import Problem, ReplanSettings, Solved
from coordinator.core.activation.preview import Change, Figures, Preview, Question
from coordinator.core.events.events import ActivationPlanFailed, ActivationPlanned
from coordinator.shell import activation_solver
from coordinator.shell.activation_solver import PREVIEWS_WAITING_MAX, ActivationPlanner, PreviewSolver
from rollcast.runtime.errors import WaitTimedOut

CHANGE = Change(staleness_limit=1, publish_every_steps=1)

DONE = Preview(now=Figures(), then=Figures(), sentence="done", warnings=[])


def question() -> Question:
    return cast(Question, "the run")


async def test_previews_are_made_one_at_a_time() -> None:
    at_once, most = 0, 0
    lock = threading.Lock()

    def solve(asked: Question, change: Change) -> Preview:
        nonlocal at_once, most
        with lock:
            at_once, most = at_once + 1, max(most, at_once + 1)
        assert (asked, change) == ("the run", CHANGE)
        with lock:
            at_once -= 1
        return DONE

    desk = PreviewSolver(question, solve)
    assert await asyncio.gather(*(desk.preview(CHANGE) for _ in range(4))) == [DONE] * 4
    assert most == 1


async def test_previews_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_solver, "PREVIEW_DEADLINE_S", 0.05)
    go_on, calls = threading.Event(), 0

    def solve(asked: Question, change: Change) -> Preview:
        nonlocal calls
        calls += 1
        go_on.wait(30.0)
        return DONE

    desk = PreviewSolver(question, solve)
    for _ in range(2):
        with pytest.raises(WaitTimedOut):
            await desk.preview(CHANGE)
    assert calls == 1  # the second did not begin while the first was solved
    waiting = [asyncio.ensure_future(desk.preview(CHANGE)) for _ in range(PREVIEWS_WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(WaitTimedOut, match="many previews"):
        await desk.preview(CHANGE)
    go_on.set()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_solver_errors_are_raised() -> None:
    def solve(asked: Question, change: Change) -> Preview:
        raise ValueError("no such worker")

    with pytest.raises(ValueError, match="no such worker"):
        await PreviewSolver(question, solve).preview(CHANGE)


DEMAND = Demand(
    rollouts_per_step=1, t_train_s=1.0, staleness_limit=4, update_bytes=1.0, learner_upload_bytes_per_second=1.0
)


def problem(number: int = 1, **changes: float) -> Problem:
    return Problem(number=number, trigger="", demand=DEMAND, workers=(), settings=ReplanSettings(**changes))


async def test_plan_becomes_an_event() -> None:
    planner = ActivationPlanner(lambda one: Solved(number=one.number))
    assert await planner.solve(problem(3)) == ActivationPlanned(Solved(number=3))


async def test_planner_bug_does_not_end_the_run() -> None:
    def broken(_: Problem) -> Solved:
        raise ValueError("oh")

    failed = await ActivationPlanner(broken).solve(problem())
    assert failed == ActivationPlanFailed(1, "the planner failed: ValueError('oh')")


async def test_one_problem_at_a_time_within_a_timeout() -> None:
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
