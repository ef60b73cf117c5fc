"""Test that a run moves between SQLite and PostgreSQL as a whole, and continues in one of them only."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from capacity.fleet.rows import JoinedRow, encode
from coordinator.config.config import StoreConfig
from coordinator.core.events.actions import CloseGroup, RecordQuarantine
from coordinator.ledger.sql_access import AuditRow
from coordinator.ledger.sql_work import body_checksum
from coordinator.ledger.store import CompactingStore
from coordinator.recovery import migration
from coordinator.recovery.authority import run_authority
from coordinator.recovery.migration import MIGRATED, PARTIAL, Migrated, to_postgres, to_sqlite
from coordinator.stores.copying import tables
from coordinator.stores.leadership import take
from coordinator.stores.opening import leadership_of, open_store
from coordinator.stores.postgres import connect
from coordinator.stores.reader import has_url
from coordinator.stores.sqlite import Ledger
from rollcast.cli.main import app
from rollcast.runtime.errors import MigrationError, RollcastError, RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Epoch, GroupId, PeerId, RunId, Step, Version
from rollcast.wire.rollout_messages import rollout_to_pb
from tests.coordinator.stored_work import attempt, batch, close, fill, issue, rollout, score, store_rollout
from tests.coordinator.stores.postgres_fixtures import lead_now, needs_postgres, new_database

pytestmark = [needs_postgres, pytest.mark.postgres]
ROOT = Path(__file__).parents[3]
KEY = Path("store.key")
RUN = RunId("run-1")
APPLIED_SET = '{"schema": 1, "workers": {"spare-1": "asked for"}}'
EXTREMES = (0.0, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), 0.1)


def silent(done: int, total: int) -> None:
    """Show no progress."""


@pytest.fixture
def url() -> str:
    return new_database()


@pytest.fixture
async def run(tmp_path: Path) -> RunFolder:
    """A run with something in every table, some of it compacted."""
    folder = RunFolder(tmp_path / "run").prepare()
    ledger = Ledger.open(folder.ledger)
    await ledger.set_meta("run_id", RUN)
    await run_authority(ledger, folder, RUN)
    await fill_tables(ledger)
    await ledger.close()
    folder.fleet_journal.parent.mkdir()
    folder.fleet_journal.write_bytes(encode(JoinedRow(1.0, "tag", "p")) + encode(JoinedRow(2.0, "tag", "q")))
    folder.fleet_applied.write_text(APPLIED_SET)
    with closing(sqlite3.connect(folder.ledger)) as connection:
        assert all(connection.execute(f"SELECT count(*) FROM {table.name}").fetchone() != (0,) for table in tables())
    return folder


async def fill_tables(store: CompactingStore) -> None:
    for step in range(4):
        ids = [step * 3 + 1, step * 3 + 2, step * 3 + 3]
        await score(store, *ids, version=max(0, step - 2))
        await store.close_attempt(close(ids[2], "stale"))
        await store.close_group(CloseGroup(GroupId(ids[2])))
        await store.record_version(Epoch(0), Version(step), b"v")
        await store.record_batch(batch(step, *ids[:2]))
        await store.record_step(Step(step + 1), {"loss": 1.0})
        store.record_event("kind", "subject", "ünï\u2028code", cause=f"step {step}")
    await store.compact(Step(2), groups_max=4, steps_kept=3)
    await issue(store, 100)
    await fill(store, 101)
    await store._thread.submit(lambda connection: _fill_rest(connection))  # type: ignore[attr-defined]
    await store.create_invite(b"\x01" * 32, "peer", quota=3, expires_unix_s=1e12)
    await store.claim_invite(b"\x01" * 32, "peer", PeerId("p"), now_unix_s=1.0)
    await store.record_quarantine(RecordQuarantine(PeerId("q"), "it lied", b"\0receipt"))
    await store.create_token(b"t" * 32, "ann", "viewer", made_unix_s=1.0, expires_unix_s=None)  # type: ignore[attr-defined]
    await store.record_audit(AuditRow(1.0, "ann", "viewer", "act", "s", "d", "done"))  # type: ignore[attr-defined]
    await store.delete_events((await store.oldest_events(1, kept=0))[0].order)


def _fill_rest(connection: Any) -> None:
    connection.execute("INSERT INTO epochs VALUES (1, 90, 92, NULL)")
    connection.execute("INSERT INTO problem_rewards VALUES ('p', 1, 0.5, 0.25)")
    body = rollout_to_pb(rollout(100, group_id=100)).SerializeToString()
    connection.execute("INSERT INTO turns VALUES (100, 0, 0, 100, 'p', '', ?, ?, ?)", (b"", body, body_checksum(body)))


def test_a_folder_without_a_run_is_named_as_by_every_other_command(tmp_path: Path) -> None:
    for move in (
        lambda folder: to_sqlite(folder, tmp_path / "key", silent),
        lambda folder: to_postgres(folder, "postgresql://127.0.0.1/none", tmp_path / "key", silent),
    ):
        with pytest.raises(RunFolderError, match="holds no run"):
            move(RunFolder(tmp_path / "empty"))
    assert not (tmp_path / "empty").exists()


def rows_of(ledger: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, sorted, with the types that tell 1 from 1.0."""
    with closing(sqlite3.connect(ledger)) as connection:
        found = {table.name: connection.execute(table.select).fetchall() for table in tables()}
        found["sequence"] = connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
        found["schema"] = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def there(run: RunFolder, url: str) -> Migrated:
    return to_postgres(run, url, KEY, silent)


def back(run: RunFolder) -> Migrated:
    return to_sqlite(run, KEY, silent)


async def test_a_run_moves_there_and_back_unchanged(run: RunFolder, url: str) -> None:
    before = rows_of(run.ledger)
    journal = run.fleet_journal.read_bytes()
    moved = there(run, url)
    assert not run.ledger.exists()
    run.fleet_journal.unlink()
    run.fleet_applied.unlink()
    assert run.store_url.read_text().strip() == url
    assert moved.tables["rollouts"].rows == len(before["rollouts"])
    returned = back(run)
    assert returned.tables == moved.tables
    assert not has_url(run)
    assert not (run.root / PARTIAL).exists()
    assert rows_of(run.ledger) == before == rows_of(run.root / MIGRATED)
    assert (run.fleet_journal.read_bytes(), run.fleet_applied.read_text()) == (journal, APPLIED_SET)


@pytest.mark.parametrize("seed", range(4))
async def test_values_of_every_kind_come_back_bit_for_bit(run: RunFolder, url: str, seed: int) -> None:
    rng = random.Random(seed)
    with closing(sqlite3.connect(run.ledger)) as connection, connection:
        for number in range(150):
            text = "".join(chr(rng.choice((1, 9, 39, 92, 255, 0x2028, 0x1F600))) for _ in range(rng.randrange(5)))
            connection.execute("INSERT INTO meta VALUES (?, ?)", (f"{number} {text}", text))
            values = (rng.randrange(-(2**63), 2**63), rng.choice(EXTREMES), -rng.choice(EXTREMES))
            connection.execute("INSERT INTO problem_rewards VALUES (?, ?, ?, ?)", (f"{number}", *values))
            announcement = rng.randbytes(rng.randrange(300))
            connection.execute("INSERT INTO versions VALUES (7, ?, ?, ?)", (90 + number, announcement, values[1]))
    before = rows_of(run.ledger)
    there(run, url)
    back(run)
    assert repr(rows_of(run.ledger)) == repr(before)


async def test_a_negative_zero_of_postgres_is_no_difference(run: RunFolder, url: str) -> None:
    there(run, url)
    with closing(connect(url)) as connection:
        connection.execute("UPDATE problem_rewards SET mean = '-0.0'")
    back(run)
    assert rows_of(run.ledger)["problem_rewards"] == [("p", 1, 0.0, 0.25)]


async def test_text_loses_its_zeros_which_postgres_cannot_store(run: RunFolder, url: str) -> None:
    with closing(sqlite3.connect(run.ledger)) as connection, connection:
        connection.execute("INSERT INTO meta VALUES ('a', ?)", ("x\0y",))
    there(run, url)
    back(run)
    assert ("a", "x\ufffdy") in rows_of(run.ledger)["meta"]


async def test_a_run_continues_in_both_stores(run: RunFolder, url: str) -> None:
    there(run, url)
    config, stop = StoreConfig(url=url), asyncio.Event()
    other = RunFolder(run.root.parent / "standby").prepare()
    (other.secrets / KEY).write_bytes((run.secrets / KEY).read_bytes())
    leads = await leadership_of(config, other, "b", stop)
    store = open_store(config, other, leads)
    authority = await run_authority(store, other, RUN, other.secrets / KEY)  # a host that never had it
    assert await store.get_meta("ca_fingerprint") == authority.fingerprint
    assert [one.group_id for one in await store.open_groups()] == [100, 101]
    with pytest.raises(StoreError, match="contradicts"):
        await store.record_version(Epoch(0), Version(1), b"v")  # compacted before the migration
    await continued(store, 200)
    await store.close()
    assert leads is not None
    await leads.close()
    back(run)
    ledger = Ledger.open(run.ledger)
    await run_authority(ledger, run, RUN)
    await continued(ledger, 300)
    counts = await ledger.counts()
    assert counts.accepted == 12 + 1 + 2
    await ledger.close()


async def continued(store: CompactingStore, number: int) -> None:
    """Do what a coordinator does next: an event, a token, a batch, and an episode's turn."""
    await store.record_event("kind", "subject", "later", cause="test")
    token = await store.create_token(  # type: ignore[attr-defined]
        str(number).encode(), str(number), "viewer", made_unix_s=1.0, expires_unix_s=None
    )
    assert token.token_id > 1
    await score(store, number)
    await store.record_batch(batch(number, number))
    with pytest.raises(StoreError, match="contradicts"):
        await store.store_rollouts([store_rollout(number + 1, rollout(number, group_id=number))])
    with pytest.raises(StoreError, match="contradicts"):
        await store.record_attempt(attempt(number + 1, 1, group_id=number))  # the group is over: the triggers are back


@pytest.mark.parametrize("rows", [1, 25, 60])
async def test_a_migration_that_is_killed_leaves_the_run_and_is_repeated(run: RunFolder, url: str, rows: int) -> None:
    before = rows_of(run.ledger)
    command = [sys.executable, "-m", "tests.coordinator.recovery.migrating", str(run.root), url, str(rows)]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert rows_of(run.ledger) == before
    assert not has_url(run)
    there(run, url)
    back(run)
    assert rows_of(run.ledger) == before


@pytest.mark.parametrize("stage", ["_name_store", "_retire", "_release"])
async def test_a_migration_that_ends_after_the_copy_is_completed(
    run: RunFolder, url: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(run.ledger)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(migration, stage, killed)
        with pytest.raises(KeyboardInterrupt):
            there(run, url)
    with closing(connect(url)) as connection:
        assert take(connection, "eager", "") is None  # nobody continues the copy before it is the run's store
    assert there(run, url).tables["rollouts"].rows == len(before["rollouts"])
    assert lead_now(url) == 1
    assert not run.ledger.exists()


@pytest.mark.parametrize("stage", ["_give_leadership", "fsync_folder"])
async def test_a_return_that_is_killed_is_completed(
    run: RunFolder, url: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(run.ledger)
    there(run, url)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(migration, stage, killed)
        with pytest.raises(KeyboardInterrupt):
            back(run)
    if has_url(run):
        back(run)
    assert not has_url(run)
    assert rows_of(run.ledger) == before


async def test_a_ledger_between_two_renames_is_recognised(run: RunFolder, url: str) -> None:
    there(run, url)
    (run.root / MIGRATED).rename(run.ledger)  # as if the first command had been killed before it renamed the ledger
    assert back(run).tables["groups"].rows > 0
    assert not has_url(run)


async def test_a_run_that_is_led_is_refused(run: RunFolder, url: str) -> None:
    ledger = Ledger.open(run.ledger)
    with pytest.raises(StoreError, match="in use"):
        there(run, url)
    await ledger.close()
    lead_now(url)
    with pytest.raises(MigrationError, match="is not free"):
        there(run, url)


async def test_a_database_that_leads_is_not_left(run: RunFolder, url: str) -> None:
    there(run, url)
    lead_now(url)
    with pytest.raises(MigrationError, match="is not free"):
        back(run)
    assert has_url(run)


async def test_a_database_that_was_left_is_never_led_or_filled_again(run: RunFolder, url: str) -> None:
    there(run, url)
    back(run)
    with closing(connect(url)) as connection:
        assert take(connection, "standby", "") is None
    with pytest.raises(MigrationError, match="is not free"):
        there(run, url)
    assert run.ledger.exists()


@pytest.mark.parametrize("run_id", [RUN, "another"])
async def test_a_database_with_other_contents_is_refused(run: RunFolder, url: str, run_id: str) -> None:
    lead_now(url)
    with closing(connect(url)) as connection:
        connection.execute("UPDATE leadership SET until_unix_s = 0")
        connection.execute("INSERT INTO meta VALUES ('run_id', ?)", (run_id,))
    with pytest.raises(MigrationError, match="differs" if run_id == RUN else "is not empty"):
        there(run, url)
    assert run.ledger.exists()


async def test_a_ledger_with_other_contents_is_not_replaced(run: RunFolder, url: str) -> None:
    there(run, url)
    run.ledger.write_bytes((run.root / MIGRATED).read_bytes())
    with closing(sqlite3.connect(run.ledger)) as connection, connection:
        connection.execute("INSERT INTO meta VALUES ('a', 'b')")
    with pytest.raises(MigrationError, match="differs") as raised:
        back(run)
    assert raised.value.cause is not None
    assert "meta (" in raised.value.cause
    assert has_url(run)


async def test_a_coordinator_refuses_the_store_that_the_run_has_left(run: RunFolder, url: str) -> None:
    with pytest.raises(MigrationError, match="in SQLite"):
        await leadership_of(StoreConfig(url=url), run, "a", asyncio.Event())
    there(run, url)
    with pytest.raises(MigrationError, match="in PostgreSQL"):
        await leadership_of(StoreConfig(), run, "a", asyncio.Event())


@pytest.mark.parametrize(("target", "words"), [("sqlite", "not in PostgreSQL"), ("{url}", "not in SQLite")])
def test_a_store_that_is_not_where_it_should_be_moved_from_is_refused(
    tmp_path: Path, url: str, target: str, words: str
) -> None:
    run = RunFolder(tmp_path).prepare()
    if target == "sqlite":
        run.ledger.touch()
    else:
        run.store_url.write_text("postgresql://127.0.0.1/another")
    with pytest.raises(RollcastError, match=words):
        back(run) if target == "sqlite" else there(run, url)


async def test_the_command_prints_what_it_compared(
    run: RunFolder, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> str:
        assert app(["migrate", *arguments], result_action="return_value") == 0
        return capsys.readouterr().out

    moved = json.loads(await asyncio.to_thread(command, str(run.root), url, "--json"))
    assert (moved["run_id"], moved["source"], moved["target"]) == (RUN, str(run.ledger), url)
    assert len(moved["tables"]["rollouts"]["digest"]) == 64
    text = await asyncio.to_thread(command, str(run.root), "sqlite")
    assert f"tables moved to {run.ledger}, and compared" in text
