"""Run the thread that owns a ledger's connection, with group commit.

The changes of one turn of the event loop go to the thread together, and under load those of HAND_OVER_S: waking the
thread for each costs more than most changes. Those that no caller waits for go with the next one that is waited for.
All changes that were queued during one commit go into the next transaction, so that they share an fsync. A change's
future is done after the commit that holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from coordinator.ledger.sql import Change
from rollcast.runtime.errors import RollcastError, StoreError, WaitTimedOut
from rollcast.runtime.waits import deadline

T = TypeVar("T")
Entry = tuple[Change[Any], asyncio.Future[Any]]

COMMIT_MAX = 1_024  # changes in one transaction; more would delay the first of them
HAND_OVER_S = 0.02  # between two hand-overs to the thread; a change that comes later is handed over at once
LATER_S = 0.05  # after which a change is handed over that no caller waits for, if none came that is waited for
ANSWER_S = 5.0  # within which a database answers a commit: far more than a busy disk needs
CLOSE_TIMEOUT_S = 8.0  # for the last commit: service managers kill who takes 30 s or more to stop

_log = structlog.get_logger()


class Engine(Protocol):
    """A connection to a database. Only the ledger's thread uses it."""

    def commit(self, changes: Sequence[Change[Any]]) -> list[Any]:
        """Apply changes in one transaction; return the result of each, or the exception with which it was refused.

        Raises:
            StoreError: the database can no longer be written.
        """
        ...

    def close(self) -> None:
        """Release the database; raises nothing."""
        ...


class LedgerThread:
    """Accepts changes on the event loop, applies them in order on its thread, and answers after the commit.

    A change that contradicts the store fails alone. An error of the database ends the thread: this and every later
    change fails with the same StoreError.
    """

    def __init__(self, engine: Engine, queue_max: int) -> None:
        """``queue_max`` changes may wait for the database; further ones are refused."""
        self._engine = engine
        self._queue_max = queue_max
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[list[Entry] | None] = queue.SimpleQueue()  # None: the last changes came before
        self._turn: list[Entry] = []  # that are handed over together
        self._handed_over_at = float("-inf")  # the loop's time
        self._later: asyncio.TimerHandle | None = None  # hands over what no caller waits for, unless it is hastened
        self._is_due = False  # whether the changes that have gathered are about to be handed over
        self._waiting = 0
        self._closing = False
        self._committing_since_s: float | None = None  # by the monotonic clock; None: nothing is being committed
        self._failure: asyncio.Future[StoreError] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commit the queued changes and close the store; without them, if it does not answer in time."""
        if not self._closing:
            self._closing = True
            self._hand_over()
            self._queue.put(None)
        try:
            async with deadline(CLOSE_TIMEOUT_S, "the store's last commit"):
                await asyncio.shield(self._ended)
        except WaitTimedOut as error:
            # Not raised: it would hide why the process ends. What was not committed was not acknowledged either.
            _log.error("the last changes are not stored; none of them was acknowledged", cause=error.what)

    @property
    def is_answering(self) -> bool:
        """Whether the commit in progress, if there is one, has taken less than ANSWER_S."""
        since_s = self._committing_since_s
        return since_s is None or time.monotonic() - since_s < ANSWER_S

    async def failed(self) -> StoreError:
        """Wait until the store can no longer be written, and return the error."""
        return await asyncio.shield(self._failure)

    def submit(self, change: Change[T], *, is_awaited: bool = True) -> asyncio.Future[T]:
        """Apply a change in the next transaction; the future has its result or the exception that it raised.

        A change that is not awaited may become durable up to LATER_S later, though never after one that was requested
        after it.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self._failure.done():
            _refuse(future, self._failure.result())
        elif self._closing:
            _refuse(future, StoreError("the ledger is closed", cause="the coordinator is shutting down"))
        elif self._waiting >= self._queue_max:
            waiting = f"{self._waiting} changes wait for the ledger's disk"
            _refuse(future, StoreError(waiting, fix="use a faster disk or fewer peers"))
        else:
            self._waiting += 1
            self._turn.append((change, future))
            if is_awaited:
                self.hasten()
            elif len(self._turn) == 1:
                self._later = self._loop.call_later(LATER_S, self._hand_over)
        return future

    def hasten(self) -> None:
        """Hand over what has gathered at the end of this turn of the loop, or HAND_OVER_S after the last time."""
        if self._is_due:
            return
        self._is_due = True
        if self._later is not None:
            self._later.cancel()
        next_at = self._handed_over_at + HAND_OVER_S
        if self._loop.time() >= next_at:
            self._loop.call_soon(self._hand_over)
        else:
            self._loop.call_at(next_at, self._hand_over)

    def is_last(self, future: asyncio.Future[Any]) -> bool:
        """Return whether a change is the one submitted last, and still on the loop, where it can be extended."""
        return bool(self._turn) and self._turn[-1][1] is future

    def _hand_over(self) -> None:
        """Pass the changes that have gathered to the thread."""
        self._is_due = False
        if self._turn:
            self._queue.put(self._turn)
            self._turn = []
            self._handed_over_at = self._loop.time()

    # ---------------------------------------------------------------- writer thread

    def _write(self) -> None:
        """Run the writer thread: commit queued changes until the store is closed."""
        failure: StoreError | None = None
        ending = False
        while not ending:
            entries, ending = self._queued()
            for first in range(0, len(entries), COMMIT_MAX):
                failure = self._commit(entries[first : first + COMMIT_MAX], failure)
        self._engine.close()
        self._call(self._finish)

    def _queued(self) -> tuple[list[Entry], bool]:
        """Wait for changes; return all that are queued, up to about COMMIT_MAX, and whether they are the last."""
        entries: list[Entry] = []
        turn = self._queue.get()
        with contextlib.suppress(queue.Empty):
            while turn is not None:
                entries += turn
                if len(entries) >= COMMIT_MAX:
                    break
                turn = self._queue.get_nowait()
        return entries, turn is None

    def _commit(self, entries: list[Entry], failure: StoreError | None) -> StoreError | None:
        """Commit changes and deliver their outcomes; return why the store can no longer be written, if it cannot."""
        outcomes: list[Any] = []
        if failure is None:
            self._committing_since_s = time.monotonic()
            try:
                outcomes = self._engine.commit([change for change, _ in entries])
            except StoreError as error:
                failure = error
            self._committing_since_s = None
        if failure is not None:
            outcomes = [failure] * len(entries)
        self._call(self._deliver, [future for _, future in entries], outcomes, failure)
        return failure

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed before the ledger
            self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, futures: list[asyncio.Future[Any]], outcomes: list[Any], failure: StoreError | None) -> None:
        self._waiting -= len(futures)
        if failure is not None and not self._failure.done():
            self._failure.set_result(failure)
        for future, outcome in zip(futures, outcomes, strict=True):
            if future.cancelled():
                continue
            if isinstance(outcome, Exception):
                _refuse(future, outcome)
            else:
                future.set_result(outcome)

    def _finish(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def _refuse(future: asyncio.Future[Any], error: Exception) -> None:
    """End a change's future with an error, and log it; callers that do not wait need not retrieve it."""
    future.set_exception(error)
    future.exception()  # marks it as retrieved
    _log.warning("ledger change refused", error=str(error) if isinstance(error, RollcastError) else repr(error))
