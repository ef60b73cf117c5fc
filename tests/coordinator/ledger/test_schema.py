from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from coordinator.ledger.schema import MIGRATIONS, migrate
from rollcast.runtime.errors import StoreError

TABLES = {
    *("attempts", "batch_rollouts", "batches", "compacted", "epochs", "events", "groups", "invite_claims", "invites"),
    *("meta", "problem_rewards", "retention", "rollouts", "scores", "steps", "versions"),
    *("audit", "tokens"),
}


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:", isolation_level=None)
    yield opened
    opened.close()


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {row[0] for row in rows}


def test_from_nothing(connection: sqlite3.Connection) -> None:
    assert version(connection) == 0
    migrate(connection)
    assert tables(connection) == TABLES
    assert version(connection) == len(MIGRATIONS)
    migrate(connection)
    assert tables(connection) == TABLES


def test_from_every_earlier_form(connection: sqlite3.Connection) -> None:
    later = (*MIGRATIONS, "ALTER TABLE meta ADD COLUMN note TEXT; CREATE TABLE extra (a TEXT) STRICT")
    migrate(connection)
    connection.execute("INSERT INTO meta VALUES ('run_id', 'a')")
    migrate(connection, later)
    assert version(connection) == len(MIGRATIONS) + 1
    assert connection.execute("SELECT * FROM meta").fetchall() == [("run_id", "a", None)]
    assert tables(connection) == TABLES | {"extra"}


def test_a_step_that_fails_leaves_the_form_before_it(connection: sqlite3.Connection) -> None:
    broken = (*MIGRATIONS, "CREATE TABLE extra (a TEXT) STRICT; CREATE NONSENSE")
    with pytest.raises(sqlite3.Error):
        migrate(connection, broken)
    assert version(connection) == len(MIGRATIONS)
    assert tables(connection) == TABLES


def test_a_newer_form_is_left_alone(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreError, match="newer"):
        migrate(connection)
    assert tables(connection) == set()
