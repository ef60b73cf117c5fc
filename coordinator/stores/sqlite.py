"""Keep a run in one SQLite file. Acknowledged data survives a SIGKILL and a power loss (WAL, synchronous=FULL)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from coordinator.ledger.sql import Change, SqlConnection, SqlErrors, commit_in_group
from coordinator.ledger.sql_store import SqlStore
from coordinator.ledger.thread import LedgerThread
from coordinator.stores.mark import MarkWriter, check_mark
from coordinator.stores.sqlite_schema import migrate
from rollcast.runtime.errors import StoreError
from rollcast.runtime.run_folder import no_run

QUEUE_MAX = 65_536  # changes that may wait for the disk
#: auto_vacuum must come before the first table: what compaction frees can then be given back in small steps. WAL mode
#: needs synchronous = FULL, because with NORMAL a power loss may undo the newest commits (https://sqlite.org/wal.html).
PRAGMAS = ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
BUSY_TIMEOUT_S = 10.0
VACUUM_PAGES = 128
RETRY_S = 0.25  # between two attempts to commit to a full disk
FREE_SHARE_MAX = 0.25  # share of free pages in the file; beyond it some are returned to the file system
_ERRORS = SqlErrors((sqlite3.IntegrityError,), sqlite3.Error)

_log = structlog.get_logger()


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection whose commits survive a power loss, for use by one thread at a time."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that cannot write, while a coordinator writes.

    Raises:
        RunFolderError: there is no ledger.
        StoreError: it cannot be read.
    """
    if not path.exists():
        raise no_run(path.parent, path.name)
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the ledger {path}", cause=str(error)) from None


class SqliteEngine:
    """The only connection that writes the file.

    Args:
        lock: descriptor of the lock file, which is closed with the connection.
        outage_max_s: seconds for which it tries to commit to a disk that is full.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int, outage_max_s: float) -> None:
        self._path = path
        self._connection = connection
        self._lock = lock
        self._outage_max_s = outage_max_s
        self._mark = MarkWriter(path)
        self._is_whole = True

    def commit(self, changes: Sequence[Change[Any]]) -> list[Any]:
        outcomes: list[Any] = []
        try:
            self._commit_once_there_is_space(changes, outcomes)
            self._mark.committed(self._connection)
        except sqlite3.Error as error:
            self._is_whole = False
            raise store_error(self._path, error) from error
        return outcomes

    def _commit_once_there_is_space(self, changes: Sequence[Change[Any]], outcomes: list[Any]) -> None:
        began_s, is_full = time.monotonic(), False
        while True:
            try:
                commit_in_group(changes, outcomes, self._transaction, _ERRORS)
                return
            except sqlite3.Error as error:
                may_wait = time.monotonic() - began_s < self._outage_max_s
                if getattr(error, "sqlite_errorname", "") != "SQLITE_FULL" or not may_wait:
                    raise
                if not is_full:
                    _log.error("the disk is full: nothing is acknowledged", ledger=str(self._path))
                is_full = True
                time.sleep(RETRY_S)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            if self._is_whole:
                self._mark.committed(self._connection, last=True)
            self._connection.close()
        os.close(self._lock)

    @contextmanager
    def _transaction(self, late_errors: bool) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


class Ledger(SqlStore):
    """A run's store in an SQLite file. Create it with Ledger.open inside a running loop, and end it with close."""

    def __init__(self, path: Path, thread: LedgerThread) -> None:
        super().__init__(thread)
        self.path = path

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        queue_max: int = QUEUE_MAX,
        connect: Callable[[Path], sqlite3.Connection] = connect,
        outage_max_s: float = 0.0,
    ) -> Ledger:
        """Open or create the store at ``path`` and migrate its tables to the newest schema.

        Args:
            outage_max_s: seconds for which a commit waits for space on a disk that is full.

        Raises:
            StoreError: it is in use, read-only, full, damaged, or newer than this installation.
            LedgerDamaged: it holds less than it did.
        """
        locked = lock(path)
        connection: sqlite3.Connection | None = None
        try:
            _keep_private(path)
            connection = connect(path)
            migrate(connection)
            check_mark(connection, path)
            return cls(path, LedgerThread(SqliteEngine(path, connection, locked, outage_max_s), queue_max))
        except BaseException as error:
            if connection is not None:
                connection.close()
            os.close(locked)
            if isinstance(error, sqlite3.Error):
                raise store_error(path, error) from error
            raise

    def give_back_pages(self) -> asyncio.Future[int]:
        return self._thread.submit(_give_back_pages)


def _give_back_pages(connection: SqlConnection) -> int:
    """Return free pages to the file system if there are many; return how many."""
    ((free,), (total,)) = (connection.execute(f"PRAGMA {name}_count").fetchone() for name in ("freelist", "page"))
    if free <= VACUUM_PAGES or free < total * FREE_SHARE_MAX:
        return 0
    connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
    return VACUUM_PAGES


def _keep_private(path: Path) -> None:
    """Let only its owner read the store, which holds prompts and rollouts; SQLite gives its other files the same mode.

    What is wrong with the path SQLite reports itself, with its own error.
    """
    with suppress(OSError):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if path.is_file():
                path.chmod(0o600)


def lock(path: Path) -> int:
    """Lock the store for this process, and return the descriptor that holds the lock.

    Two coordinators on one ledger would issue the same leases.

    Raises:
        StoreError: another process has the lock, or the folder cannot be written.
    """
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
