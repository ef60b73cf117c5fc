"""Test the ledger: acknowledged changes are stored, contradictions refused, and failures to open explained."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator.core.events.actions import Note
from coordinator.ledger.sql import SqlConnection
from coordinator.stores import sqlite
from coordinator.stores.sqlite import Ledger, store_error
from coordinator.stores.sqlite_schema import MIGRATIONS, OLDEST, migrate
from rollcast.runtime.errors import RunFormatError, StoreError
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.rollout_messages import rollout_to_pb
from tests.coordinator.stored_work import attempt, batch, group, rollout, score, store_rollout
from tests.coordinator.stores.store_conformance import CompactionConformance

ROOT = Path(__file__).parents[3]


@pytest_asyncio.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = Ledger.open(tmp_path / "store.sqlite")
    yield opened
    await opened.close()


def acknowledged_by_a_killed_writer(path: Path, count: int) -> set[int]:
    """Return the rollouts that a writer process reported as stored before SIGKILL, at least ``count``."""
    command = [sys.executable, "-m", "tests.coordinator.stores.ledger_writer", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(count)]
        writer.kill()
        lines += writer.stdout.readlines()
    return {int(line) for line in lines if line.endswith("\n")}


async def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    acknowledged = acknowledged_by_a_killed_writer(path, 300)
    assert len(acknowledged) >= 300
    reopened = Ledger.open(path)
    rows = await reopened._thread.submit(
        lambda connection: connection.execute("SELECT rollout_id FROM rollouts").fetchall()
    )
    await reopened.close()
    assert acknowledged <= {rollout_id for (rollout_id,) in rows}


async def events(ledger: Ledger) -> list[tuple[int, str, str]]:
    """Return the run's event log: order, detail, cause."""
    query = "SELECT event_order, detail, cause FROM events ORDER BY event_order"
    return await ledger._thread.submit(lambda connection: connection.execute(query).fetchall())


async def test_events_are_kept_in_their_order_with_their_cause(ledger: Ledger) -> None:
    await ledger.record_note(Note("peer", "p1", "joined"), cause="peer p1")
    await ledger.record_event("peer", "p1", "left", cause="time")
    assert await events(ledger) == [(1, "joined", "peer p1"), (2, "left", "time")]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET detail = ''",
        "DELETE FROM events",
        "UPDATE batches SET step = 9",
        "UPDATE batch_rollouts SET step = 9",
        "DELETE FROM batch_rollouts",
        "UPDATE rollouts SET body = x''",
        "DELETE FROM versions",
        "DELETE FROM groups WHERE group_id = 2",
        "DELETE FROM attempts WHERE group_id = 2",
        "DELETE FROM rollouts WHERE rollout_id = 2",
        "DELETE FROM scores WHERE rollout_id = 2",
        "UPDATE attempts SET state = 'open'",
        "UPDATE retention SET horizon_step = -1",
    ],
)
async def test_history_is_not_rewritten(ledger: Ledger, statement: str) -> None:
    await score(ledger, 1, 2)
    ledger.record_event("a", "b", "c", cause="test")
    ledger.record_version(Epoch(0), Version(0), b"a")
    await ledger.record_batch(batch(0, 1))
    with pytest.raises(StoreError, match=r"never|stays|as a whole"):
        await ledger._thread.submit(lambda connection: connection.execute(statement))


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite", queue_max=10)
    futures = [ledger.set_meta("a", str(number)) for number in range(15)]  # the loop does not turn meanwhile
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False] * 10 + [True] * 5
    await ledger.close()


async def test_a_full_disk_ends_the_ledger(ledger: Ledger) -> None:
    await ledger.set_meta("run_id", "a")

    def leave_no_room(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    await ledger._thread.submit(leave_no_room)
    with pytest.raises(StoreError, match="full") as caught:
        await ledger.set_meta("large", "x" * 100_000)
    assert "free some space" in caught.value.fix
    assert (await ledger.failed()) is caught.value
    with pytest.raises(StoreError, match="full"):
        await ledger.get_meta("run_id")


async def test_a_commit_waits_for_space_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "RETRY_S", 0.001)
    ledger = Ledger.open(tmp_path / "store.sqlite", outage_max_s=60.0)
    await ledger.set_meta("run_id", "a")
    connections: list[Any] = []

    def leave_no_room(connection: SqlConnection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        connections.append(connection)

    await ledger._thread.submit(leave_no_room)
    large = ledger.set_meta("large", "x" * 100_000)
    done, _ = await asyncio.wait([large], timeout=0.1)
    assert not done
    connections[0].execute("PRAGMA max_page_count = 1000000").fetchall()
    await asyncio.wait_for(large, 20.0)
    assert await ledger.get_meta("large") == "x" * 100_000
    await ledger.close()


async def test_a_disk_that_turns_read_only_ends_the_ledger(ledger: Ledger) -> None:
    await ledger._thread.submit(lambda connection: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreError, match="readonly") as caught:
        await ledger.set_meta("a", "b")
    assert "writable" in caught.value.fix


def _a_folder(path: Path) -> None:
    path.mkdir()


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a database, and long enough to be looked at" * 100)


def _from_the_future(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def _no_folder(path: Path) -> None:
    path.parent.rmdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_a_folder, "writable"),
        (_garbage, "damaged"),
        (_from_the_future, "upgrade"),
        (_no_folder, "writable"),
    ],
)
async def test_unusable_store_is_an_error(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    spoil(folder / "store.sqlite")
    with pytest.raises(StoreError) as caught:
        Ledger.open(folder / "store.sqlite")
    assert words in caught.value.fix


async def test_second_coordinator_is_refused(ledger: Ledger) -> None:
    with pytest.raises(StoreError, match="in use"):
        Ledger.open(ledger.path)
    await ledger.close()
    await Ledger.open(ledger.path).close()


@pytest.mark.parametrize(
    ("name", "words"),
    [("SQLITE_BUSY", "other program"), ("SQLITE_IOERR_WRITE", "check the disk"), ("SQLITE_CORRUPT", "damaged")],
)
def test_every_error_has_a_fix(name: str, words: str) -> None:
    error = sqlite3.OperationalError("went wrong")
    error.sqlite_errorname = name
    assert words in store_error(Path("s"), error).fix


async def test_group_commit_throughput(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """Print, without asserting, the rate of 1,000 rollouts of about 12 KB, each acknowledged by itself."""
    await ledger.record_group(group(), "{}")
    for number in range(1, 1001):
        ledger.record_attempt(attempt(number, number))
    rollouts = [rollout(number, number, tokens=4000) for number in range(1, 1001)]
    size = rollout_to_pb(rollouts[0]).ByteSize()
    began = time.perf_counter()

    async def storing(first: int) -> None:
        for number in range(first, 1001, 64):
            await ledger.store_rollouts([store_rollout(number, rollouts[number - 1])])

    await asyncio.gather(*(storing(first) for first in range(1, 65)))
    took_s = time.perf_counter() - began
    with capsys.disabled():
        print(f"\nledger: {1000 / took_s:,.0f} durable rollouts of {size / 1000:.1f} KB a second, 64 at a time")
    assert (await ledger.counts()).accepted == 1000


TABLES = {
    *("attempts", "batch_rollouts", "batches", "compacted", "epochs", "events", "groups", "invite_claims", "invites"),
    *("meta", "problem_rewards", "retention", "rollouts", "scores", "steps", "versions"),
    *("audit", "quarantines", "tokens", "turns"),
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


def test_failed_migration_keeps_the_previous_schema(connection: sqlite3.Connection) -> None:
    broken = (*MIGRATIONS, "CREATE TABLE extra (a TEXT) STRICT; CREATE NONSENSE")
    with pytest.raises(sqlite3.Error):
        migrate(connection, broken)
    assert version(connection) == len(MIGRATIONS)
    assert tables(connection) == TABLES


def test_newer_schema_is_refused_and_unchanged(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreError, match="newer"):
        migrate(connection)
    assert tables(connection) == set()


async def test_ledger_of_an_earlier_format_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    await Ledger.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {OLDEST - 1}")
    for _ in range(2):
        with pytest.raises(RunFormatError) as refused:
            Ledger.open(path)
        assert f"it has format {OLDEST - 1}" in f"{refused.value}"
        assert "another run_folder" in f"{refused.value}"
    with closing(sqlite3.connect(path)) as connection:
        assert version(connection) == OLDEST - 1


class TestLedger(CompactionConformance):
    async def open_store(self, folder: Path) -> Ledger:
        return Ledger.open(folder / "store.sqlite")
