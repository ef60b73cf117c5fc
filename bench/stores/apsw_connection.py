"""Provide the few methods of sqlite3.Connection that the ledger uses, over an APSW connection on a simulated disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import apsw

from bench.stores.forgetful_disk import ForgetfulDisk
from coordinator.stores.sqlite import PRAGMAS


class ApswCursor:
    """The rows of a statement, all fetched, and the number of rows that it changed."""

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)


class ApswConnection:
    """A connection that raises sqlite3's exceptions, as the ledger expects."""

    def __init__(self, path: str, disk: ForgetfulDisk, *, synchronous: str) -> None:
        """Open the file; ``synchronous`` is FULL as in the ledger, or OFF to plant a bug that the check must find."""
        with _as_sqlite3():
            self._connection = apsw.Connection(path, vfs=disk.name)
        ours = [f"synchronous = {synchronous}" if one.startswith("synchronous") else one for one in PRAGMAS]
        try:
            for pragma in ("locking_mode = EXCLUSIVE", *ours):
                self.execute(f"PRAGMA {pragma}")
        except sqlite3.Error:
            self.close()
            raise

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> ApswCursor:
        with _as_sqlite3():
            rows = list(self._connection.execute(sql, tuple(parameters)))
            return ApswCursor(rows, self._connection.changes())

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with _as_sqlite3():
            for _ in self._connection.executemany(sql, [tuple(row) for row in rows]):
                pass

    def executescript(self, sql: str) -> None:
        self.execute(sql)

    def close(self) -> None:
        with suppress(apsw.Error):  # closing a connection of sqlite3 does not fail either
            self._connection.close(True)


@contextmanager
def _as_sqlite3() -> Iterator[None]:
    try:
        yield
    except apsw.ConstraintError as error:
        raise sqlite3.IntegrityError(str(error)) from error
    except apsw.Error as error:
        raise sqlite3.OperationalError(str(error)) from error
