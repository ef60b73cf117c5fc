"""Keep a run in PostgreSQL, written by the one coordinator that leads, whose every transaction is fenced.

The statements are sent in pipeline mode: one transaction of many changes waits for the server where a statement's rows
are read, and at its commit. A lost connection is opened again and the transaction repeated, unless the server had
committed it, which the row ``commits`` tells; the fence makes this safe after any pause.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any

import structlog

from coordinator.ledger.sql import Change, Rows, SqlConnection, SqlErrors, commit_in_group
from coordinator.ledger.sql_store import SqlStore
from coordinator.ledger.thread import LedgerThread
from coordinator.stores.postgres_schema import FENCED
from rollcast.runtime.errors import ConfigError, LeadershipLost, StoreError
from rollcast.wire.text.data_files import optional_import

QUEUE_MAX = 65_536  # changes that may wait for the database
CONNECT_TIMEOUT_S = 5
#: The server ends a transaction that its coordinator leaves alone for so long. A coordinator that was frozen inside a
#: transaction holds the row of leadership, and no other could take over before.
IDLE_IN_TRANSACTION_MS = 2_000
STATEMENT_TIMEOUT_MS = 30_000
LOST_AFTER_MS = 10_000  # a connection whose peer acknowledges nothing for so long is closed
RETRY_S = 0.25  # between two attempts to connect
#: The application name of a leader's ledger connection. Who takes the leadership over ends it: the limit above does not
#: count while a pipeline is half sent, and a leader that was frozen then would hold the row for ever.
LEADER = "rollcast leader"

#: Classes of SQLSTATE (PostgreSQL, appendix A) of which the same transaction may succeed later: a lost connection, a
#: standby, a transaction left idle, a deadlock, no space, memory or connections left, a server that starts or stops, an
#: error of its disk.
_OUTAGES = ("08", "25006", "25P03", "40", "53", "57", "58")

_log = structlog.get_logger()


def connect(url: str, *, read_only: bool = False, name: str = "rollcast") -> PostgresConnection:
    """Open a connection to the database at a postgresql:// URL. Its password is in the passfile or PGPASSWORD.

    Args:
        name: the application name that the server shows.

    Raises:
        MissingExtra: psycopg is not installed.
        psycopg.Error: the database does not answer, or refuses this user.
    """
    psycopg = _psycopg()
    options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c idle_in_transaction_session_timeout="
    options += f"{IDLE_IN_TRANSACTION_MS}"
    connection = psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        tcp_user_timeout=LOST_AFTER_MS,
        # A pipeline that is rolled back may lose statements that psycopg goes on to use as prepared.
        prepare_threshold=None,
        application_name=name,
        options=options,
    )
    if read_only:  # not an option: with it, target_session_attrs=read-write in the URL would find no server
        connection.execute("SET default_transaction_read_only = on")
    adapters = connection.adapters
    adapters.register_dumper(int, psycopg.types.numeric.Int8Dumper)
    adapters.register_dumper(str, _text_dumper())
    return PostgresConnection(connection)


def checked_url(url: str) -> str:
    """Return a URL as connect takes it.

    Raises:
        ConfigError: it is not of PostgreSQL, or has a password, which the run folder and the logs would show.
    """
    psycopg = _psycopg()
    try:
        if not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("it does not begin with postgresql://")
        has_password = bool(psycopg.conninfo.conninfo_to_dict(url).get("password"))
    except (ValueError, psycopg.Error) as error:
        raise ConfigError(
            "store.url is not the URL of a PostgreSQL database",
            cause=str(error),
            fix="write postgresql://USER@HOST/DATABASE",
        ) from None
    if has_password:
        raise ConfigError(
            "store.url has a password",
            cause="the run folder and the logs would show it",
            fix="remove it from the URL, and put it in ~/.pgpass (mode 0600) or PGPASSWORD",
        )
    return url


def store_error(error: Exception) -> StoreError:
    """Convert an error of psycopg to a StoreError with its fix."""
    if getattr(error, "sqlstate", None) == FENCED:
        return lost_leadership()
    return StoreError(
        "cannot use the store in PostgreSQL",
        cause=str(error).strip() or type(error).__name__,
        fix="check that the database of store.url runs, has space, and admits this user",
    )


def lost_leadership() -> LeadershipLost:
    """Return the error with which a coordinator ends after another one took over."""
    return LeadershipLost(
        "this coordinator leads no longer",
        cause="another one took over while it did not renew its leadership in the database",
        fix="start it again: it waits as a standby",
    )


class PostgresConnection:
    """A connection that takes the ledger's statements; its rows may arrive after the statement, in a pipeline."""

    def __init__(self, connection: Any) -> None:
        self.raw = connection
        self.pipeline: Any = None

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        cursor = self.raw.cursor(binary=True)
        if parameters:
            cursor.execute(_translated(sql), tuple(parameters))
        else:
            cursor.execute(sql)
        return _Result(self, cursor)

    def executemany(self, sql: str, parameters: Sequence[Any], /) -> None:
        for values in parameters:
            self.execute(sql, values)

    @contextmanager
    def pipelined(self) -> Iterator[None]:
        """Send the statements without waiting for each; the context waits for all, and raises the first error."""
        with self.raw.pipeline() as self.pipeline:
            try:
                yield
                self.pipeline.sync()
            finally:
                self.pipeline = None

    def executescript(self, sql: str, /) -> None:
        self.raw.execute(sql)

    def interrupt(self) -> None:
        """Lose the connection, so that a thread that waits for its server gets an error.

        The limits on statements and connections are the server's and the network's: a server that is frozen, or waits
        for its disk, answers nothing and ends nothing.
        """
        with suppress(OSError, errors().any), socket.socket(fileno=os.dup(self.raw.fileno())) as shared:
            shared.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.raw.close()


class _Result:
    """The rows of a statement, for which a pipeline is sent and waited for when they are needed."""

    def __init__(self, connection: PostgresConnection, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        if self._connection.pipeline is not None:
            self._connection.pipeline.sync()
        return int(self._cursor.rowcount)

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return list(self._cursor.fetchall())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor.fetchall())


@lru_cache(maxsize=512)
def _translated(sql: str) -> str:
    """Return a statement with psycopg's placeholders; the ledger's statements have ``?`` for values only."""
    return sql.replace("%", "%%").replace("?", "%s")


class PostgresEngine:
    """The connection of the coordinator that leads.

    Args:
        epoch: the epoch in which it leads.
        outage_max_s: seconds for which it tries to reach a database that does not answer.
    """

    def __init__(self, url: str, epoch: int, outage_max_s: float) -> None:
        self._url = url
        self._epoch = epoch
        self._outage_max_s = outage_max_s
        self._errors = errors()
        self._number = 0
        self._connection: PostgresConnection | None = None
        self.is_reached = True

    def commit(self, changes: Sequence[Change[Any]]) -> list[Any]:
        outcomes: list[Any] = []
        began_s = time.monotonic()
        self._number += 1
        while True:
            try:
                if self._connection is None:
                    self._connection = connect(self._url, name=LEADER)
                    if self._was_committed(self._connection):
                        self.is_reached = True
                        return outcomes
                commit_in_group(changes, outcomes, self._transaction, self._errors)
                self.is_reached = True
                return outcomes
            except self._errors.any as error:
                self.close()
                if not is_outage(error) or time.monotonic() - began_s > self._outage_max_s:
                    raise store_error(error) from error
                if self.is_reached:
                    _log.error("the database does not answer: nothing is acknowledged", error=str(error).strip())
                self.is_reached = False
                time.sleep(RETRY_S)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._errors.any):
                connection.close()

    def _was_committed(self, connection: PostgresConnection) -> bool:
        """Return whether the transaction whose answer was lost took place; waits until it has ended."""
        row = connection.execute(
            "SELECT number FROM commits WHERE epoch = ? AND number = ? FOR UPDATE", (self._epoch, self._number)
        ).fetchone()
        return row is not None

    @contextmanager
    def _transaction(self, late_errors: bool) -> Iterator[PostgresConnection]:
        connection = self._connection
        assert connection is not None
        try:
            with connection.pipelined() if late_errors else nullcontext():
                connection.execute("BEGIN")
                connection.execute("SELECT fence(?)", (self._epoch,))
                yield connection
                connection.execute("UPDATE commits SET epoch = ?, number = ?", (self._epoch, self._number))
                connection.execute("COMMIT")
        except BaseException:
            with suppress(self._errors.any):
                connection.execute("ROLLBACK")
            raise


class PostgresStore(SqlStore):
    """A run's store in PostgreSQL. Free pages are the server's own matter."""

    def __init__(self, engine: PostgresEngine, *, queue_max: int = QUEUE_MAX) -> None:
        super().__init__(LedgerThread(engine, queue_max))
        self._engine = engine

    @property
    def is_reached(self) -> bool:
        return self._engine.is_reached and super().is_reached

    def give_back_pages(self) -> asyncio.Future[int]:
        return self._thread.submit(lambda connection: 0)

    def fleet_journal(self) -> asyncio.Future[list[bytes]]:
        """Return the lines of the journal of rented workers, oldest first."""
        return self._thread.submit(select_fleet_journal)

    def append_fleet_journal(self, lines: Sequence[bytes]) -> asyncio.Future[None]:
        """Append lines to the journal of rented workers, all or none."""
        return self._thread.submit(lambda connection: insert_fleet_journal(connection, lines))


def select_fleet_journal(connection: SqlConnection) -> list[bytes]:
    return [bytes(line) for (line,) in connection.execute("SELECT line FROM fleet_journal ORDER BY row_order")]


def insert_fleet_journal(connection: SqlConnection, lines: Sequence[bytes]) -> None:
    connection.executemany("INSERT INTO fleet_journal (line) VALUES (?)", [(line,) for line in lines])


@contextmanager
def read_only(url: str) -> Iterator[PostgresConnection]:
    """Open a connection that cannot write.

    Raises:
        StoreError: the database does not answer, or has no run.
    """
    error_type = errors().any
    try:
        connection = connect(url, read_only=True)
        try:
            yield connection
        finally:
            connection.close()
    except error_type as error:
        raise store_error(error) from None


def is_outage(error: Exception) -> bool:
    """Whether the same transaction may succeed later."""
    state = getattr(error, "sqlstate", None)
    if state is None:
        return isinstance(error, _psycopg().OperationalError)
    return str(state).startswith(_OUTAGES)


def errors() -> SqlErrors:
    psycopg = _psycopg()
    refusals = (psycopg.IntegrityError, psycopg.errors.RaiseException, psycopg.DataError)
    return SqlErrors(refusals, psycopg.Error)


def _psycopg() -> Any:
    return optional_import("psycopg", "a store in PostgreSQL needs the package psycopg", "postgres")


@lru_cache(maxsize=1)
def _text_dumper() -> type:
    strings = optional_import("psycopg.types.string", "a store in PostgreSQL needs the package psycopg", "postgres")

    class TextDumper(strings.StrDumper):  # type: ignore[misc, name-defined]
        """Dumps text without the character 0, which PostgreSQL cannot store and hostile peers may send."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\ufffd"))

    return TextDumper
