"""Test that a copy of all tables equals its source, and that contents that differ are noticed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from coordinator.stores.copying import SqliteTables, contents, copy, differences, is_empty, tables
from coordinator.stores.sqlite_schema import migrate


@pytest.fixture
def source() -> Iterator[sqlite3.Connection]:
    with new() as connection:
        connection.execute("INSERT INTO groups VALUES (1, 'p', x'00', '', '{}', NULL, '', 1)")
        connection.execute(
            "INSERT INTO attempts (lease_id, sample_index, fencing_token, group_id, seed, peer_id)"
            " VALUES (1, 0, 1, 1, -1, 'p')"
        )
        connection.execute(
            "INSERT INTO rollouts (rollout_id, lease_id, sample_index, peer_id, body, oldest_version, newest_version)"
            " VALUES (1, 1, 0, 'p', x'ff00', 0, 0)"
        )
        for number in range(250):
            connection.execute("INSERT INTO meta VALUES (?, ?)", (f"key {number}", f"{number}\0"))
        connection.execute("INSERT INTO events VALUES (1, 0.5, 'a', 'b', 'c', 'd')")
        connection.execute("UPDATE retention SET events_archived = 9")
        connection.execute("DELETE FROM events")
        yield connection


def new() -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    return closing(connection)


def test_each_table_comes_after_those_that_it_refers_to() -> None:
    names = [table.name for table in tables()]
    for earlier, later in (("groups", "attempts"), ("attempts", "rollouts"), ("invites", "invite_claims")):
        assert names.index(earlier) < names.index(later)


def test_a_copy_equals_its_source_and_refuses_what_the_source_does(source: sqlite3.Connection) -> None:
    shown: list[tuple[int, int]] = []
    with new() as target:
        assert is_empty(SqliteTables(target))
        found = copy(SqliteTables(source), SqliteTables(target), lambda *counts: shown.append(counts))
        assert not is_empty(SqliteTables(target))
        assert found == contents(SqliteTables(source)) == contents(SqliteTables(target))
        assert shown == [(100, 254), (200, 254), (254, 254)]
        assert target.execute("SELECT state FROM attempts").fetchall() == [("filled",)]
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            target.execute("UPDATE rollouts SET body = x'00'")
        target.execute("INSERT INTO events (at_unix_s, kind, subject, detail, cause) VALUES (0.0, '', '', '', 'a')")
        assert target.execute("SELECT event_order FROM events").fetchall() == [(10,)]


def test_keys_that_are_left_out_are_neither_copied_nor_compared(source: sqlite3.Connection) -> None:
    left_out = {"key 7"}
    with new() as target:
        found = copy(SqliteTables(source, left_out), SqliteTables(target), lambda done, total: None)
        assert found["meta"].rows == 249
        assert target.execute("SELECT * FROM meta WHERE key = 'key 7'").fetchall() == []
        assert differences(found, contents(SqliteTables(source))) == ["meta (249 and 250 rows)"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", "b"), ("ab", "")),
        (("1", 1.0), ("1", -1.0)),
        (("1", 0.5), ("2", 0.5)),
    ],
)
def test_rows_that_differ_have_other_digests(first: tuple[object, ...], second: tuple[object, ...]) -> None:
    digests = set()
    for values in (first, second):
        with new() as connection:
            if isinstance(values[1], str):
                connection.execute("INSERT INTO meta VALUES (?, ?)", values)
            else:
                connection.execute("INSERT INTO problem_rewards VALUES (?, 1, ?, 0)", values)
            digests.add(tuple(one.digest for one in contents(SqliteTables(connection)).values()))
    assert len(digests) == 2
