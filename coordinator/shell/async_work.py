"""Run work that takes time and comes back to the event loop: durable changes of the ledger, and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from coordinator.core.events.events import Event
from rollcast.runtime.errors import StoreError
from rollcast.runtime.waits import deadline

LEDGER_DEADLINE_S = 60.0

T = TypeVar("T")


class AsyncWork:
    """Runs changes and tasks concurrently with the loop; its owner must ``close`` it.

    Args:
        apply: receives the event that follows from a change once it is durable.
        fail: receives the error of a change or task; it ends the run.
        ended: whether the run is over, so that errors of tasks no longer matter.
    """

    def __init__(
        self, apply: Callable[[Event], None], fail: Callable[[Exception], None], ended: Callable[[], bool]
    ) -> None:
        self._apply = apply
        self._fail = fail
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._newest: asyncio.Future[Any] | None = None  # the change that was waited for last
        self._after_newest: list[Event] = []

    async def durable(self, change: asyncio.Future[Any], what: str) -> None:
        """Wait until a change is durable; cancelling the wait does not undo the change.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot store it.
        """
        self.when_durable(change)
        async with deadline(LEDGER_DEADLINE_S, f"the ledger to store {what}"):
            await asyncio.shield(change)

    async def answer(self, question: asyncio.Future[T], what: str) -> T:
        """Return what the ledger answers.

        Raises:
            StoreError, WaitTimedOut: it cannot.
        """
        async with deadline(LEDGER_DEADLINE_S, f"the ledger to read {what}"):
            return await asyncio.shield(question)

    def when_durable(self, change: asyncio.Future[Any], then: Event | None = None) -> None:
        """Apply ``then`` once a change is durable. A change that the ledger refuses is a bug and ends the run.

        Changes that the ledger makes together have one future, and cost one callback.
        """
        if change is not self._newest or change.done():
            self._newest, self._after_newest = change, []
            change.add_done_callback(partial(self._durable, self._after_newest))
        if then is not None:
            self._after_newest.append(then)

    def _durable(self, events: list[Event], change: asyncio.Future[Any]) -> None:
        if change.cancelled():
            return
        error = change.exception()
        if error is not None:
            self._fail(error if isinstance(error, Exception) else StoreError(str(error)))
            return
        for event in events:
            self._apply(event)

    def when_done(self, result: asyncio.Future[T], then: Callable[[T], None]) -> None:
        """Call ``then`` with a result once it is there, unless this is closed; an error ends the run as a task's does.

        This costs a fraction of a task.
        """

        def done(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if self._is_closed:
                return
            if error is None:
                then(future.result())
            elif isinstance(error, Exception) and not self._ended():
                self._fail(error)

        result.add_done_callback(done)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task; its error ends the run."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._ended():
            self._fail(error)

    async def close(self) -> None:
        """Cancel the tasks that are in progress; results that come later are dropped."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
