"""The durable store of a run: what was issued, what came back, what it was worth, and what was trained on.

One writer thread owns the SQLite connection. Whatever has queued up while it committed goes into its next transaction
(group commit), so an fsync is shared by all rollouts that arrive during one. A method's future is done after the commit
that holds its change: what is acknowledged is stored (WAL, synchronous=FULL). Changes are made in the order in which
the methods were called, whether or not the caller waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from coordinator import ledger_sql as sql
from coordinator.actions import CloseAttempt, Note, RecordAttempt, RecordBatch, RecordGroup, StoreRollout
from coordinator.ledger_schema import migrate
from coordinator.ledger_sql import BatchEntry, HighWater, LedgerCounts, StoredVersion
from rollcast.runtime.errors import RollcastError, StoreError
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import Epoch, PeerId, RolloutId, Step, Version

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]

QUEUE_MAX = 65_536  # changes that may wait for the disk
COMMIT_MAX = 1_024  # changes in one transaction, so that the first of them is not kept waiting long
CLOSE_TIMEOUT_S = 60.0
ROOM_TIMEOUT_S = 60.0

_log = structlog.get_logger()


class Ledger:
    """Asyncio front of the store. Make it with Ledger.open inside a running loop, end it with close.

    Every method returns a future. A change that contradicts what is stored fails with StoreError alone; a disk that
    fails ends the ledger: this and every later change fails with the same StoreError, and ``failed`` returns it.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int, queue_max: int) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._queue_max = queue_max
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[Change[Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._closing = False
        self._room = asyncio.Event()
        self._room.set()
        self._failure: asyncio.Future[StoreError] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, *, queue_max: int = QUEUE_MAX) -> Ledger:
        """Open or create the store at ``path`` and bring its tables to the newest form.

        Raises:
            StoreError: it is in use, read-only, full, damaged, or newer than this installation.
        """
        lock = _lock(path)
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {pragma}")
            migrate(connection)
            return cls(path, connection, lock, queue_max)
        except BaseException as error:
            if connection is not None:
                connection.close()
            os.close(lock)
            if isinstance(error, sqlite3.Error):
                raise store_error(path, error) from error
            raise

    async def close(self) -> None:
        """Commit what is queued and close the store."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        async with deadline(CLOSE_TIMEOUT_S, "the ledger's last commit"):
            await asyncio.shield(self._ended)

    async def failed(self) -> StoreError:
        """Returns the error once the store can no longer be written; waits for as long as it can."""
        return await asyncio.shield(self._failure)

    async def room(self) -> None:
        """Wait until the queue is less than half full: call before taking more from the network.

        Raises:
            WaitTimedOut: the disk takes too long.
        """
        async with deadline(ROOM_TIMEOUT_S, "the ledger's disk", fix="use a faster disk or fewer peers"):
            await self._room.wait()

    def record_group(self, action: RecordGroup, problem_json: str) -> asyncio.Future[None]:
        """A prompt group was opened."""
        return self._submit(lambda connection: sql.insert_group(connection, action, problem_json))

    def record_attempt(self, action: RecordAttempt) -> asyncio.Future[None]:
        """A slot was issued."""
        return self._submit(lambda connection: sql.insert_attempt(connection, action))

    def close_attempt(self, action: CloseAttempt) -> asyncio.Future[None]:
        """An issued slot was dropped; fails if it is unknown, closed before, or trained."""
        return self._submit(lambda connection: sql.close_attempt(connection, action))

    def close_open_attempts(self, reason: str) -> asyncio.Future[int]:
        """Drop every attempt that is neither trained nor dropped; gives their number."""
        return self._submit(lambda connection: sql.close_open_attempts(connection, reason))

    def store_rollouts(self, actions: Sequence[StoreRollout]) -> asyncio.Future[None]:
        """Store all or none; fails if one is already stored or was never issued."""
        return self._submit(lambda connection: sql.insert_rollouts(connection, actions))

    def record_score(
        self, rollout_id: RolloutId, reward: float, *, exact: bool, error: str = ""
    ) -> asyncio.Future[None]:
        """A stored rollout was scored, once."""
        return self._submit(lambda connection: sql.insert_score(connection, rollout_id, reward, exact, error))

    def record_batch(self, action: RecordBatch) -> asyncio.Future[None]:
        """All or nothing; fails if the step has a batch or a rollout is trained, dropped or not scored."""
        return self._submit(lambda connection: sql.insert_batch(connection, action))

    def record_version(self, epoch: Epoch, version: Version, announcement: bytes) -> asyncio.Future[bool]:
        """Store an announcement; gives False if the same one is stored, fails if another one is."""
        stored = StoredVersion(epoch, version, announcement)
        return self._submit(lambda connection: sql.insert_version(connection, stored))

    def create_invite(self, token_hash: bytes, role: str, *, quota: int, expires_unix_s: float) -> asyncio.Future[None]:
        """An invite for ``quota`` identities. Only the token's hash is stored."""
        return self._submit(lambda connection: sql.insert_invite(connection, token_hash, role, quota, expires_unix_s))

    def claim_invite(self, token_hash: bytes, role: str, peer_id: PeerId, *, now_unix_s: float) -> asyncio.Future[None]:
        """Use up one of the invite's quota, once an identity; fails with JoinRefused."""
        return self._submit(lambda connection: sql.claim_invite(connection, token_hash, role, peer_id, now_unix_s))

    def record_step(self, step: Step, figures: Mapping[str, float]) -> asyncio.Future[None]:
        """Figures of a learner step; a replayed step replaces them."""
        return self._submit(lambda connection: sql.insert_step(connection, step, figures))

    def record_event(self, kind: str, subject: str, detail: str, cause: str = "") -> asyncio.Future[None]:
        """Append to the run's story."""
        at_unix_s = time.time()
        return self._submit(
            lambda connection: sql.insert_events(connection, at_unix_s, [(kind, subject, detail, cause)])
        )

    def record_note(self, note: Note, cause: str = "") -> asyncio.Future[None]:
        """Append the core's note to the run's story."""
        return self.record_event(note.kind, note.subject, note.detail, cause)

    def set_meta(self, key: str, value: str) -> asyncio.Future[None]:
        """Keep one fact about the run, such as its run_id."""
        return self._submit(lambda connection: sql.put_meta(connection, key, value))

    def get_meta(self, key: str) -> asyncio.Future[str | None]:
        """A fact kept by set_meta."""
        return self._submit(lambda connection: sql.get_meta(connection, key))

    def batch(self, step: Step) -> asyncio.Future[list[BatchEntry]]:
        """The recorded batch in its order; empty if there is none."""
        return self._submit(lambda connection: sql.select_batch(connection, step))

    def recorded_batches(self) -> asyncio.Future[int]:
        """One more than the newest step with a recorded batch."""
        return self._submit(sql.count_batches)

    def version(self, version: Version) -> asyncio.Future[StoredVersion | None]:
        """The announcement of this version in the newest epoch that has it."""
        return self._submit(lambda connection: sql.select_version(connection, version))

    def newest_version(self) -> asyncio.Future[StoredVersion | None]:
        """The newest announcement of the newest epoch."""
        return self._submit(lambda connection: sql.select_version(connection, None))

    def newest_versions(self, count: int) -> asyncio.Future[list[StoredVersion]]:
        """At most this many announcements of the newest epoch, the newest first."""
        return self._submit(lambda connection: sql.select_newest_versions(connection, count))

    def steps(self) -> asyncio.Future[list[tuple[Step, dict[str, float]]]]:
        """Figures of every step, in order."""
        return self._submit(sql.select_steps)

    def counts(self) -> asyncio.Future[LedgerCounts]:
        """Attempts by what became of them, counted in the tables."""
        return self._submit(sql.select_counts)

    def trained_ages(self) -> asyncio.Future[dict[int, int]]:
        """Rollouts in batches, counted by their age in learner steps."""
        return self._submit(sql.select_trained_ages)

    def mixture_position(self) -> asyncio.Future[str | None]:
        """Where the prompt mixture stands after the newest group."""
        return self._submit(sql.select_mixture_position)

    def high_water(self) -> asyncio.Future[HighWater]:
        """Largest ids in use, to go on above them."""
        return self._submit(sql.select_high_water)

    def _submit(self, change: Change[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        future.add_done_callback(_log_refusal)
        if self._failure.done():
            future.set_exception(self._failure.result())
        elif self._closing:
            future.set_exception(StoreError("the ledger is closed"))
        elif self._waiting >= self._queue_max:
            future.set_exception(
                StoreError(
                    f"{self._waiting} changes wait for the ledger's disk", fix="use a faster disk or fewer peers"
                )
            )
        else:
            self._waiting += 1
            if self._waiting * 2 >= self._queue_max:
                self._room.clear()
            self._queue.put((change, future))
        return future

    # ---------------------------------------------------------------- writer thread

    def _write(self) -> None:
        """Body of the writer thread."""
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
                except sqlite3.Error as error:
                    failure = store_error(self.path, error)
            if failure is not None:
                outcomes = [failure] * len(changes)
            self._call(self._deliver, [future for _, future in changes], outcomes, failure)
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        os.close(self._lock)
        self._call(self._finish)

    def _commit(self, changes: Sequence[Change[Any]]) -> list[Any]:
        """Make the changes in one transaction; those that contradict the store are undone alone."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            outcomes = [_apply(connection, change) for change in changes]
            connection.execute("COMMIT")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed before the ledger
            self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, futures: list[asyncio.Future[Any]], outcomes: list[Any], failure: StoreError | None) -> None:
        self._waiting -= len(futures)
        if self._waiting * 2 < self._queue_max:
            self._room.set()
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


def _apply(connection: sqlite3.Connection, change: Change[Any]) -> Any:
    connection.execute("SAVEPOINT one")
    try:
        outcome = change(connection)
    except sqlite3.IntegrityError as error:
        outcome = StoreError("the ledger refuses a change that contradicts it", cause=str(error))
    except sqlite3.Error:
        raise
    except Exception as error:  # reaches the caller through its future
        outcome = error
    if isinstance(outcome, Exception):
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")
    return outcome


def _log_refusal(future: asyncio.Future[Any]) -> None:
    """Also marks the exception as seen, for callers that do not wait."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("ledger change refused", error=str(error) if isinstance(error, RollcastError) else repr(error))


def _lock(path: Path) -> int:
    """Hold the store for this process: two coordinators on one ledger would each issue the same leases."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot open the ledger {path}", cause=str(error), fix="make the run folder writable for this user"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreError(
            f"the ledger {path} is in use",
            cause="another coordinator runs on this run folder",
            fix="stop it or choose another run_folder",
        ) from None
    return descriptor


def store_error(path: Path, error: sqlite3.Error) -> StoreError:
    """Turn an error of SQLite into one that a person can act on."""
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
