"""Run the capacity model's solvers in threads, one problem at a time, with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from capacity.replan.events import Problem, Solved
from coordinator.core.activation.preview import Change, Preview, Question, preview
from coordinator.core.events.events import ActivationPlanFailed, ActivationPlanned
from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.waits import deadline

log = structlog.get_logger()

PREVIEW_DEADLINE_S = 20.0
PREVIEWS_WAITING_MAX = 8  # previews in the queue; a page requests a new one whenever its form changes
_GRACE_S = 5.0  # before the core's own timeout, so that it learns the reason


class ActivationPlanner:
    """Solves the core's activation problems.

    Args:
        decide: the solver; None: the capacity model's, which is loaded with scipy when first needed.
    """

    def __init__(self, decide: Callable[[Problem], Solved] | None = None) -> None:
        self._decide = decide or _decide
        self._running: asyncio.Future[Solved] | None = None

    async def solve(self, problem: Problem) -> ActivationPlanned | ActivationPlanFailed:
        """Return the plan, or why there is none; errors of the planner are returned, not raised."""
        if self._running is not None and not self._running.done():
            return ActivationPlanFailed(problem.number, "the planner is still solving the previous problem")
        self._running = asyncio.ensure_future(asyncio.to_thread(self._decide, problem))
        limit_s = max(1.0, problem.settings.solve_timeout_s - _GRACE_S)
        try:
            async with deadline(limit_s, "the planner to choose peers"):
                return ActivationPlanned(await asyncio.shield(self._running))
        except WaitTimedOut:
            self._running.add_done_callback(_consume_error)
            return ActivationPlanFailed(problem.number, f"the planner took longer than {limit_s:g} s")
        except Exception as error:
            log.exception("the planner failed", plan=problem.number, trigger=problem.trigger)
            return ActivationPlanFailed(problem.number, f"the planner failed: {error!r}")


class PreviewSolver:
    """Solves previews of operator actions.

    Args:
        question: returns the run as it is now.
        solve: predicts the consequences; called in a thread.
    """

    def __init__(
        self, question: Callable[[], Question], solve: Callable[[Question, Change], Preview] = preview
    ) -> None:
        self._question = question
        self._solve = solve
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Preview] | None = None  # continues in its thread after its caller has timed out
        self._waiting = 0

    async def preview(self, change: Change) -> Preview:
        """Return the consequences of a change.

        Raises:
            WaitTimedOut: it takes too long, or too many previews wait.
        """
        if self._waiting >= PREVIEWS_WAITING_MAX:
            raise WaitTimedOut("too many previews are being computed", fix="retry in a few seconds")
        self._waiting += 1
        try:
            async with deadline(PREVIEW_DEADLINE_S, "the planner to compute a preview"), self._turn:
                if self._running is not None and not self._running.done():
                    await asyncio.wait([self._running])
                running = asyncio.ensure_future(asyncio.to_thread(self._solve, self._question(), change))
                self._running = running
                running.add_done_callback(_consume_error)
                return await asyncio.shield(running)
        finally:
            self._waiting -= 1


def _consume_error(late: asyncio.Future[Solved] | asyncio.Future[Preview]) -> None:
    if not late.cancelled():
        late.exception()


def _decide(problem: Problem) -> Solved:
    from capacity.replan.deciding import decide  # scipy takes a while to load, and most runs never need it

    return decide(problem)
