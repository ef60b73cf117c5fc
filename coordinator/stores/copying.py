"""Copy every table of a run from one store into an empty one, and compare the contents of two stores.

The tables and their columns are those of SQLite; PostgreSQL's have the same ones, which a test of both schemas checks.
A table's digest is the sum of its rows' hashes, so it does not depend on the order in which an engine returns them.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from blake3 import blake3

from coordinator.stores import sqlite_schema
from coordinator.stores.postgres import PostgresConnection

ROWS_AT_ONCE = 100  # of a rollout's size: some MB
_DIGEST_BITS = 256
_NOTHING_DELETED = (1, 0, 0, 0, 0)  # the row of retention in a new store
#: PostgreSQL's types by the names that its catalogue gives them, for a binary COPY.
_TYPES = {"bigint": "int8", "text": "text", "bytea": "bytea", "double precision": "float8"}

Row = tuple[Any, ...]
Progress = Callable[[int, int], None]  # receives the rows copied, and in all


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the run."""

    name: str
    columns: tuple[str, ...]

    @property
    def select(self) -> str:
        """Return the statement that reads every row."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a table holds. ``digest``: hexadecimal; equal for equal rows in any order."""

    rows: int
    digest: str


class TableStore(Protocol):
    """A store whose tables are read and filled as a whole."""

    def count(self, table: Table) -> int:
        """Return the number of rows, those included that ``rows`` leaves out."""
        ...

    def rows(self, table: Table) -> Iterator[Row]:
        """Yield every row; text has no character 0, which PostgreSQL cannot store."""
        ...

    def fill(self, tables: Iterable[tuple[Table, Iterable[Row]]]) -> None:
        """Write the rows of every table, whose triggers do not act on them."""
        ...


@lru_cache(maxsize=1)
def tables() -> tuple[Table, ...]:
    """Return the tables of a run, each after those that it refers to."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        sqlite_schema.migrate(database)
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall()
        return tuple(
            Table(name, tuple(row[1] for row in database.execute(f"PRAGMA table_info({name})")))
            for (name,) in names
            if not name.startswith("sqlite_")
        )


def is_empty(store: TableStore) -> bool:
    """Return whether the store holds nothing but what a new one does."""
    return all(
        not store.count(table) or (table.name == "retention" and list(store.rows(table)) == [_NOTHING_DELETED])
        for table in tables()
    )


def copy(source: TableStore, target: TableStore, progress: Progress) -> dict[str, Contents]:
    """Fill the empty target, and return what was read from the source, by the names of the tables."""
    total = sum(map(source.count, tables()))
    sums = {table.name: _Sum() for table in tables()}
    done = 0

    def counted(table: Table) -> Iterator[Row]:
        nonlocal done
        for row in source.rows(table):
            sums[table.name].add(row)
            yield row
            done += 1
            if done % ROWS_AT_ONCE == 0:
                progress(done, total)

    target.fill((table, counted(table)) for table in tables())
    progress(done, done)
    return {name: one.contents() for name, one in sums.items()}


def contents(store: TableStore) -> dict[str, Contents]:
    """Read the whole store and return what each table holds."""
    found = {}
    for table in tables():
        one = _Sum()
        for row in store.rows(table):
            one.add(row)
        found[table.name] = one.contents()
    return found


def differences(first: Mapping[str, Contents], second: Mapping[str, Contents]) -> list[str]:
    """Return the tables that differ, each with the numbers of its rows."""
    return [
        f"{name} ({first[name].rows} and {second[name].rows} rows)" for name in first if first[name] != second[name]
    ]


class _Sum:
    """Adds up the hashes of rows."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def add(self, row: Row) -> None:
        self._rows += 1
        self._sum += int.from_bytes(blake3(b"".join(map(_encoded, row))).digest(), "little")

    def contents(self) -> Contents:
        return Contents(self._rows, f"{self._sum % (1 << _DIGEST_BITS):0{_DIGEST_BITS // 4}x}")


def _encoded(value: Any) -> bytes:
    """Return bytes that no other value has, whatever follows them."""
    match value:
        case None:
            return b"n"
        case int():
            return b"i" + struct.pack("<q", value)
        case float():
            return b"f" + struct.pack("<d", value + 0.0)  # SQLite stores -0.0 as 0.0
        case str():
            data = value.encode()
            return b"s" + struct.pack("<q", len(data)) + data
        case _:
            return b"b" + struct.pack("<q", len(value)) + bytes(value)


class SqliteTables:
    """The tables of an SQLite file.

    Args:
        left_out: keys of ``meta`` that are not read.
    """

    def __init__(self, connection: sqlite3.Connection, left_out: Collection[str] = ()) -> None:
        self._connection = connection
        self._left_out = left_out

    def count(self, table: Table) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0])

    def rows(self, table: Table) -> Iterator[Row]:
        found = (tuple(map(_storable, row)) for row in self._connection.execute(table.select))
        return _without(table, found, self._left_out)

    def fill(self, tables: Iterable[tuple[Table, Iterable[Row]]]) -> None:
        connection = self._connection
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM retention")
        for table, rows in tables:
            places = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})", rows)
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'events'")
        connection.execute(f"INSERT INTO sqlite_sequence VALUES ('events', ({_LAST_EVENT}))")
        for _, sql in triggers:
            connection.execute(sql)
        connection.execute("COMMIT")


class PostgresTables:
    """The tables of a PostgreSQL database, whose connection is in a transaction; see SqliteTables."""

    def __init__(self, connection: PostgresConnection, left_out: Collection[str] = ()) -> None:
        self._connection = connection
        self._left_out = left_out

    def count(self, table: Table) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0])

    def rows(self, table: Table) -> Iterator[Row]:
        with self._connection.raw.cursor(name="rows", binary=True) as cursor:
            cursor.itersize = ROWS_AT_ONCE
            cursor.execute(table.select)
            yield from _without(table, cursor, self._left_out)

    def fill(self, tables: Iterable[tuple[Table, Iterable[Row]]]) -> None:
        for table, rows in tables:
            self._connection.execute(f"ALTER TABLE {table.name} DISABLE TRIGGER USER")
            if table.name == "retention":
                self._connection.execute("DELETE FROM retention")
            self._copy(table, rows)
            self._connection.execute(f"ALTER TABLE {table.name} ENABLE TRIGGER USER")
        for name, column, last in (
            ("events", "event_order", _LAST_EVENT),
            ("tokens", "token_id", "SELECT max(token_id) FROM tokens"),
            ("audit", "audit_id", "SELECT max(audit_id) FROM audit"),
        ):
            self._connection.execute(
                f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), coalesce(({last}), 0) + 1, false)"
            )

    def _copy(self, table: Table, rows: Iterable[Row]) -> None:
        found = self._connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = current_schema() AND table_name = ?",
            (table.name,),
        )
        types = {column: _TYPES[kind] for column, kind in found}
        sql = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN (FORMAT BINARY)"
        with self._connection.raw.cursor() as cursor, cursor.copy(sql) as stream:
            stream.set_types([types[column] for column in table.columns])
            for row in rows:
                stream.write_row(row)


#: The largest number that an event ever had; further ones are above it.
_LAST_EVENT = "SELECT max(last) FROM (SELECT max(event_order) AS last FROM events UNION ALL"
_LAST_EVENT += " SELECT events_archived FROM retention) AS numbers"


def _storable(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _without(table: Table, rows: Iterable[Row], left_out: Collection[str]) -> Iterator[Row]:
    """Leave keys of ``meta`` out, whose first column is the key."""
    return (row for row in rows if table.name != "meta" or row[0] not in left_out)
