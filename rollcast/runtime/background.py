"""Run tasks in the background: their exceptions are logged, and their owner cancels them all together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import structlog

log = structlog.get_logger()


class Background:
    """The background tasks of one owner, who bounds their number. Use it inside a running event loop.

    Args:
        broke: log message for a task that raised, which is a bug.
    """

    def __init__(self, broke: str) -> None:
        self._broke = broke
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def end(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(self._broke, exc_info=error)
