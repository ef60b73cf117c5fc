"""Define the part of a database connection that the ledger's statements use, and apply changes in transactions.

The statements are written once, in the SQL that SQLite and PostgreSQL share, with ``?`` for values. What differs
between the engines (tables, triggers, how to connect) is in coordinator/stores/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rollcast.runtime.errors import StoreError

T = TypeVar("T")

#: The value of LIMIT that limits nothing: PostgreSQL has no LIMIT -1, and SQLite no LIMIT ALL.
NO_LIMIT = 1 << 62
ROWS_AT_ONCE = (32, 8, 2, 1)
"""Rows of one statement, largest first: a few lengths only, so that an engine keeps all of them prepared."""


class Rows(Protocol):
    """The result of one statement."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; None after the last."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """A connection that runs statements."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        """Run one statement."""
        ...

    def executemany(self, sql: str, parameters: Sequence[Any], /) -> object:
        """Run one statement for each sequence of values."""
        ...


class RunReader(SqlConnection, Protocol):
    """A connection that cannot write, to the store of a run that is over or in progress."""


Change = Callable[[SqlConnection], T]


def insert_rows(connection: SqlConnection, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows of equal length in as few statements as possible; ``statement`` has ``<rows>`` for their values."""
    done = 0
    for at_once in ROWS_AT_ONCE:
        while len(rows) - done >= at_once:
            part = rows[done : done + at_once]
            one = "(" + ", ".join("?" * len(part[0])) + ")"
            connection.execute(
                statement.replace("<rows>", ", ".join([one] * at_once)), [value for row in part for value in row]
            )
            done += at_once


@dataclass(frozen=True, slots=True)
class SqlErrors:
    """The exceptions of one engine. ``refusal``: constraints and triggers refuse a change; ``any``: all of them."""

    refusal: tuple[type[Exception], ...]
    any: type[Exception]


def commit_in_group(
    changes: Sequence[Change[Any]],
    outcomes: list[Any],
    transaction: Callable[[bool], AbstractContextManager[SqlConnection]],
    errors: SqlErrors,
) -> None:
    """Apply changes in one transaction; undo only those that contradict the store.

    Undoing one change needs a savepoint for each, so that is done only after one contradicted: each statement must
    acquire the interpreter lock again, which a busy coordinator has least of.

    Args:
        outcomes: receives the result of each change, or its exception. It is complete before the commit, so that a
            caller who learns later that a lost commit took place has them.
        transaction: begins a transaction, which ends with the context: committed, or undone by an exception. Its
            argument says whether errors may be raised later than by the statement that they belong to.
    """
    refused: tuple[type[Exception], ...] = (_Contradiction, *errors.refusal)
    try:
        with transaction(True) as connection:
            outcomes[:] = [_apply_all_or_nothing(connection, change, errors) for change in changes]
    except refused:
        with transaction(False) as connection:
            outcomes[:] = [_apply(connection, change, errors) for change in changes]


class _Contradiction(Exception):
    """A change contradicts the store."""


def _apply_all_or_nothing(connection: SqlConnection, change: Change[Any], errors: SqlErrors) -> Any:
    try:
        return change(connection)
    except errors.any:
        raise
    except Exception:
        raise _Contradiction from None


def _apply(connection: SqlConnection, change: Change[Any], errors: SqlErrors) -> Any:
    connection.execute("SAVEPOINT one")
    try:
        outcome = change(connection)
    except errors.refusal as error:
        outcome = StoreError("the ledger refuses a change that contradicts it", cause=str(error))
    except errors.any:
        raise
    except Exception as error:  # the caller gets it through its future
        outcome = error
    if isinstance(outcome, Exception):
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")
    return outcome
