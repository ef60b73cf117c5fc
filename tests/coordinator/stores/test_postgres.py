"""Test the store in PostgreSQL: the conformance suite, the fence, and lost connections."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from coordinator.stores import sqlite_schema
from coordinator.stores.leadership import held, lead
from coordinator.stores.postgres import PostgresConnection, PostgresStore, checked_url, connect, is_outage, read_only
from coordinator.stores.postgres_schema import MIGRATIONS, OLDEST, migrate
from rollcast.runtime.errors import ConfigError, LeadershipLost, RunFormatError, StoreError
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.text.data_files import optional_import
from tests.coordinator.stored_work import batch, score
from tests.coordinator.stores.postgres_fixtures import lead_now, leading_store, needs_postgres, new_database, server
from tests.coordinator.stores.store_conformance import CompactionConformance

pytestmark = [needs_postgres, pytest.mark.postgres]


class TestPostgresStore(CompactionConformance):
    async def open_store(self, folder: Path) -> PostgresStore:
        if not hasattr(self, "url"):
            self.url = await asyncio.to_thread(new_database)
        return await leading_store(self.url)


@pytest.fixture
def url() -> str:
    return new_database()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET detail = ''",
        "DELETE FROM events",
        "UPDATE batches SET step = 9",
        "UPDATE batch_rollouts SET step = 9",
        "DELETE FROM batch_rollouts",
        r"UPDATE rollouts SET body = '\x00'::bytea",
        "DELETE FROM versions",
        "DELETE FROM groups WHERE group_id = 2",
        "DELETE FROM attempts WHERE group_id = 2",
        "DELETE FROM rollouts WHERE rollout_id = 2",
        "DELETE FROM scores WHERE rollout_id = 2",
        "UPDATE attempts SET state = 'open'",
        "UPDATE retention SET horizon_step = -1",
        "DELETE FROM retention",
        "UPDATE leadership SET epoch = 0",
        "DELETE FROM leadership",
    ],
)
async def test_history_is_not_rewritten(written: PostgresStore, statement: str) -> None:
    with pytest.raises(StoreError, match=r"never|stays|as a whole"):
        await written._thread.submit(lambda connection: connection.execute(statement))


@pytest.fixture(scope="module")
def written_url() -> str:
    return new_database()


@pytest.fixture
async def written(written_url: str) -> AsyncIterator[PostgresStore]:
    store = await leading_store(written_url)
    if await store.recorded_batches() == 0:
        await score(store, 1, 2)
        store.record_event("a", "b", "c", cause="test")
        store.record_version(Epoch(0), Version(0), b"a")
        await store.record_batch(batch(0, 1))
    yield store
    await store.close()


async def test_a_leader_that_another_replaced_commits_nothing(url: str) -> None:
    old = await leading_store(url)
    await old.set_meta("a", "old")
    new = await leading_store(url)
    assert await new.get_meta("a") == "old"
    with pytest.raises(LeadershipLost):
        await old.set_meta("a", "late")
    assert isinstance(await old.failed(), LeadershipLost)
    assert await new.get_meta("a") == "old"
    await new.close()
    await old.close()


async def test_a_lost_connection_is_opened_again(url: str) -> None:
    store = await leading_store(url)
    await store.set_meta("a", "1")
    await asyncio.to_thread(end_connections, url)
    await store.set_meta("a", "2")
    assert await store.get_meta("a") == "2"
    assert store.is_reached
    await store.close()


async def test_a_commit_whose_answer_is_lost_is_not_repeated(url: str) -> None:
    store = await leading_store(url)
    engine = store._engine
    real = engine._transaction

    @contextmanager
    def losing_the_answer(late_errors: bool) -> Iterator[PostgresConnection]:
        engine._transaction = real  # type: ignore[method-assign]
        with real(late_errors) as connection:
            yield connection
        raise optional_import("psycopg", "", "").OperationalError("the connection is lost")

    engine._transaction = losing_the_answer  # type: ignore[method-assign]
    await store.record_event("peer", "p", "once", cause="test")
    count = await store._thread.submit(lambda connection: connection.execute("SELECT count(*) FROM events").fetchone())
    assert count == (1,)
    await store.close()


async def test_text_of_hostile_peers_is_stored_without_its_zeros(url: str) -> None:
    store = await leading_store(url)
    await store.set_meta("a", "x\0y")
    assert await store.get_meta("a") == "x\ufffdy"
    await store.close()


def test_a_reader_finds_the_primary_by_the_url_of_several_hosts(url: str) -> None:
    lead_now(url)
    with read_only(f"{url}&target_session_attrs=read-write") as connection:
        assert connection.execute("SELECT count(*) FROM groups").fetchone() == (0,)
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("on",)


def test_only_what_may_succeed_later_is_an_outage() -> None:
    kinds = optional_import("psycopg.errors", "", "")
    for later in (kinds.DiskFull, kinds.TooManyConnections, kinds.DeadlockDetected, kinds.AdminShutdown, kinds.IoError):
        assert is_outage(later("no"))
    for never in (kinds.UniqueViolation, kinds.InsufficientPrivilege, kinds.UndefinedTable):
        assert not is_outage(never("no"))


def end_connections(url: str) -> None:
    """End every other connection to the database, as a failover or an impatient balancer does."""
    connection = connect(url)
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall()
    connection.close()


def test_the_tables_have_the_columns_of_sqlite(url: str) -> None:
    lead_now(url)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        sqlite_schema.migrate(database)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        wanted = {
            (table, row[1], position)
            for table in tables
            if not table.startswith("sqlite_")
            for position, row in enumerate(database.execute(f"PRAGMA table_info({table})"), start=1)
        }
    connection = connect(url)
    found = connection.execute(
        "SELECT table_name, column_name, ordinal_position FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name NOT IN"
        " ('leadership', 'commits', 'fleet_journal', 'schema_version')"
    )
    assert {(table, column, int(position)) for table, column, position in found} == wanted
    connection.close()


def test_a_newer_schema_is_refused(url: str) -> None:
    lead_now(url)
    connection = connect(url)
    connection.execute("UPDATE schema_version SET version = ?", (len(MIGRATIONS) + 1,))
    with pytest.raises(RunFormatError, match="newer"):
        migrate(connection)
    connection.close()


async def test_a_run_of_an_earlier_format_is_never_led(url: str) -> None:
    epoch = lead_now(url)
    connection = connect(url)
    connection.execute("UPDATE leadership SET until_unix_s = 0")
    connection.execute("UPDATE schema_version SET version = ?", (OLDEST - 1,))
    with pytest.raises(RunFormatError, match=f"it has format {OLDEST - 1}"):
        await lead(url, "test", "here", outage_max_s=60.0)
    assert connection.execute("SELECT version FROM schema_version").fetchone() == (OLDEST - 1,)
    assert held(connection).epoch == epoch
    connection.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [("sqlite:///a", "does not begin"), ("postgresql://a:secret@b/c", "password"), ("postgresql://a?x=1", "invalid")],
)
def test_a_url_that_cannot_be_used_is_an_error(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as found:
        checked_url(url)
    assert words in f"{found.value}"


def test_a_database_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(StoreError, match="cannot use the store"), read_only("postgresql://a@/b?host=/nowhere"):
        pass
    assert server().folder.exists()
