"""Run the thread that owns a ledger's connection, with group commit.

All changes that were queued during one commit go into the next transaction, so that they share an fsync. A change's
future is done after the commit that holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from coordinator.ledger.mark import MarkWriter
from rollcast.runtime.errors import RollcastError, StoreError
from rollcast.runtime.waits import deadline

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]

COMMIT_MAX = 1_024  # changes in one transaction; more would delay the first of them
CLOSE_TIMEOUT_S = 60.0

_log = structlog.get_logger()


class LedgerThread:
    """Accepts changes on the event loop, applies them in order on its thread, and answers after the commit.

    A change that contradicts the store fails alone. A disk error ends the thread: this and every later change fails
    with the same StoreError.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int, queue_max: int) -> None:
        """``lock`` is the descriptor of the lock file, which is closed with the connection."""
        self._path = path
        self._connection = connection
        self._lock = lock
        self._queue_max = queue_max
        self._mark = MarkWriter(path)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[Change[Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._closing = False
        self._failure: asyncio.Future[StoreError] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commit the queued changes and close the store."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        async with deadline(CLOSE_TIMEOUT_S, "the ledger's last commit"):
            await asyncio.shield(self._ended)

    async def failed(self) -> StoreError:
        """Wait until the store can no longer be written, and return the error."""
        return await asyncio.shield(self._failure)

    def submit(self, change: Change[T]) -> asyncio.Future[T]:
        """Apply a change in the next transaction; the future has its result or the exception that it raised."""
        future: asyncio.Future[T] = self._loop.create_future()
        future.add_done_callback(_log_refusal)
        if self._failure.done():
            future.set_exception(self._failure.result())
        elif self._closing:
            future.set_exception(StoreError("the ledger is closed", cause="the coordinator is shutting down"))
        elif self._waiting >= self._queue_max:
            future.set_exception(
                StoreError(
                    f"{self._waiting} changes wait for the ledger's disk", fix="use a faster disk or fewer peers"
                )
            )
        else:
            self._waiting += 1
            self._queue.put((change, future))
        return future

    # ---------------------------------------------------------------- writer thread

    def _write(self) -> None:
        """Run the writer thread: commit queued changes until the store is closed."""
        failure: StoreError | None = None
        ending = False
        while not ending:
            entries = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(entries) < COMMIT_MAX:
                    entries.append(self._queue.get_nowait())
            ending = None in entries
            changes = [entry for entry in entries if entry is not None]
            outcomes: list[Any] = []
            if failure is None and changes:
                try:
                    outcomes = self._commit([change for change, _ in changes])
                    self._mark.committed(self._connection)
                except sqlite3.Error as error:
                    failure = store_error(self._path, error)
            if failure is not None:
                outcomes = [failure] * len(changes)
            self._call(self._deliver, [future for _, future in changes], outcomes, failure)
        with contextlib.suppress(sqlite3.Error):
            if failure is None:
                self._mark.committed(self._connection, last=True)
            self._connection.close()
        os.close(self._lock)
        self._call(self._finish)

    def _commit(self, changes: Sequence[Change[Any]]) -> list[Any]:
        """Apply the changes in one transaction; undo only those that contradict the store.

        Undoing one change needs a savepoint for each, so that is done only after one contradicted: each statement must
        acquire the interpreter lock again, which a busy coordinator has least of.
        """
        try:
            return self._transaction(changes, _apply_all_or_nothing)
        except _Contradiction:
            return self._transaction(changes, _apply)

    def _transaction(
        self, changes: Sequence[Change[Any]], apply: Callable[[sqlite3.Connection, Change[Any]], Any]
    ) -> list[Any]:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            outcomes = [apply(connection, change) for change in changes]
            connection.execute("COMMIT")
        except (sqlite3.Error, _Contradiction):
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return outcomes

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
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _finish(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class _Contradiction(Exception):
    """A change contradicts the store."""


def _apply_all_or_nothing(connection: sqlite3.Connection, change: Change[Any]) -> Any:
    try:
        return change(connection)
    except sqlite3.IntegrityError:
        raise _Contradiction from None
    except sqlite3.Error:
        raise
    except Exception:
        raise _Contradiction from None


def _apply(connection: sqlite3.Connection, change: Change[Any]) -> Any:
    connection.execute("SAVEPOINT one")
    try:
        outcome = change(connection)
    except sqlite3.IntegrityError as error:
        outcome = StoreError("the ledger refuses a change that contradicts it", cause=str(error))
    except sqlite3.Error:
        raise
    except Exception as error:  # the caller gets it through its future
        outcome = error
    if isinstance(outcome, Exception):
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")
    return outcome


def _log_refusal(future: asyncio.Future[Any]) -> None:
    """Log a refused change; this also marks the exception as retrieved, for callers that do not wait."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("ledger change refused", error=str(error) if isinstance(error, RollcastError) else repr(error))


def store_error(path: Path, error: sqlite3.Error) -> StoreError:
    """Convert an SQLite error to a StoreError with its fix."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        fix = "free some space or put run_folder on another disk"
    elif name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        fix = "make the run folder writable for this user or choose another run_folder"
    elif name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        fix = "the file is damaged or not a ledger: move it away, restore a copy, or choose another run_folder"
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        fix = "close the other program that has the file open"
    else:
        fix = "check the disk that holds run_folder"
    return StoreError(f"cannot use the ledger {path}", cause=f"{error} ({name})" if name else str(error), fix=fix)
