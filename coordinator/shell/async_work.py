"""What takes time and comes back to the event loop: changes that the ledger keeps, and work in tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from coordinator.core.events.events import Event
from rollcast.runtime.errors import StoreError
from rollcast.runtime.waits import deadline

LEDGER_DEADLINE_S = 60.0


class AsyncWork:
    """Whoever makes one must ``close`` it.

    Args:
        apply: told the event that follows from a change once it is kept.
        fail: told what went wrong; it ends the run.
        ended: whether the run is over, and what tasks fail with does not matter any more.
    """

    def __init__(
        self, apply: Callable[[Event], None], fail: Callable[[Exception], None], ended: Callable[[], bool]
    ) -> None:
        self._apply = apply
        self._fail = fail
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    async def durable(self, change: asyncio.Future[Any], what: str) -> None:
        """Wait until the ledger has kept a change; a caller that goes away does not take it back.

        Raises:
            StoreError, WaitTimedOut: the ledger does not.
        """
        self.kept(change)
        async with deadline(LEDGER_DEADLINE_S, f"the ledger to keep {what}"):
            await asyncio.shield(change)

    def kept(self, change: asyncio.Future[Any], then: Event | None = None) -> None:
        """The ledger's answer: an event, or the end of the run. A change it refuses is a bug, and never goes on."""

        def done(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self._fail(error if isinstance(error, Exception) else StoreError(str(error)))
            elif then is not None:
                self._apply(then)

        change.add_done_callback(done)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let this run; what it fails with ends the run."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._ended():
            self._fail(error)

    async def close(self) -> None:
        """Drop the work that is still under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
