"""Previews beside the event loop: one at a time, in a thread, within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.core.activation.preview import Change, Preview, Question, preview
from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.waits import deadline

DEADLINE_S = 20.0
WAITING_MAX = 8  # previews that wait for their turn; a page asks anew as its form changes


class Previewing:
    """Args:
    question: the run as it is now.
    solve: says what would follow; called in a thread.
    """

    def __init__(
        self, question: Callable[[], Question], solve: Callable[[Question, Change], Preview] = preview
    ) -> None:
        self._question = question
        self._solve = solve
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Preview] | None = None  # goes on for one who did not wait for its end
        self._waiting = 0

    async def preview(self, change: Change) -> Preview:
        """What would follow.

        Raises:
            WaitTimedOut: it takes too long, or too many wait for one.
        """
        if self._waiting >= WAITING_MAX:
            raise WaitTimedOut("many previews are being made already", fix="ask again in some seconds")
        self._waiting += 1
        try:
            async with deadline(DEADLINE_S, "the planner to say what would follow"), self._turn:
                if self._running is not None and not self._running.done():
                    await asyncio.wait([self._running])
                running = asyncio.ensure_future(asyncio.to_thread(self._solve, self._question(), change))
                self._running = running
                running.add_done_callback(_forget)
                return await asyncio.shield(running)
        finally:
            self._waiting -= 1


def _forget(late: asyncio.Future[Preview]) -> None:
    if not late.cancelled():
        late.exception()
