"""Run work in the background, so that no exception of it is lost: it is logged, or given to who can act on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

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

    def __len__(self) -> int:
        """Return how many tasks are in progress."""
        return len(self._tasks)

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


async def or_fail(work: Coroutine[Any, Any, None], fail: Callable[[Exception], None]) -> None:
    """Do work, and pass an exception on at once: that of a task is seen only when the task is awaited."""
    try:
        await work
    except Exception as error:
        fail(error)
