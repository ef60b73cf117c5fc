"""Solves activation problems beside the event loop: one at a time, in a thread, within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from capacity.replan.events import Problem, Solved
from coordinator.core.events.events import ActivationPlanFailed, ActivationPlanned
from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.waits import deadline

log = structlog.get_logger()

_GRACE_S = 5.0  # before the core's own deadline, so that it hears why


class ActivationPlanner:
    """Args: decide: the solver; none: the capacity model's, loaded with scipy when it is first needed."""

    def __init__(self, decide: Callable[[Problem], Solved] | None = None) -> None:
        self._decide = decide or _decide
        self._running: asyncio.Future[Solved] | None = None

    async def solve(self, problem: Problem) -> ActivationPlanned | ActivationPlanFailed:
        """The answer, or why there is none; never raises for what the planner does."""
        if self._running is not None and not self._running.done():
            return ActivationPlanFailed(problem.number, "the planner still works on the problem before")
        self._running = asyncio.ensure_future(asyncio.to_thread(self._decide, problem))
        limit_s = max(1.0, problem.settings.solve_timeout_s - _GRACE_S)
        try:
            async with deadline(limit_s, "the planner to choose peers"):
                return ActivationPlanned(await asyncio.shield(self._running))
        except WaitTimedOut:
            self._running.add_done_callback(_forget)
            return ActivationPlanFailed(problem.number, f"the planner took longer than {limit_s:g} s")
        except Exception as error:
            log.exception("the planner failed", plan=problem.number, trigger=problem.trigger)
            return ActivationPlanFailed(problem.number, f"the planner failed: {error!r}")


def _forget(late: asyncio.Future[Solved]) -> None:
    if not late.cancelled():
        late.exception()


def _decide(problem: Problem) -> Solved:
    from capacity.replan.deciding import decide  # scipy takes a while to load, and most runs never need it

    return decide(problem)
