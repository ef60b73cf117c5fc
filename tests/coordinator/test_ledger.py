"""The ledger as a whole: what is acknowledged is stored, what contradicts it is refused, and why it cannot be used."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.actions import CloseAttempt, Note, RecordBatch
from coordinator.ledger import Ledger, store_error
from coordinator.ledger_sql import HighWater, LedgerCounts, StoredVersion
from rollcast.runtime.errors import JoinRefused, StoreError
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import rollout_to_pb
from tests.coordinator.ledger_writer import attempt, group, rollout, store

ROOT = Path(__file__).parents[2]


@pytest_asyncio.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = Ledger.open(tmp_path / "store.sqlite")
    yield opened
    await opened.close()


async def issue(ledger: Ledger, *lease_ids: int) -> None:
    """Store and score a rollout for each lease; rollout ids are the lease ids."""
    await ledger.record_group(group(), "{}")
    for lease_id in lease_ids:
        ledger.record_attempt(attempt(lease_id))
    await ledger.store_rollouts([store(lease_id, rollout(lease_id)) for lease_id in lease_ids])
    for lease_id in lease_ids:
        await ledger.record_score(RolloutId(lease_id), lease_id / 10, exact=lease_id == 10)


def batch(step: int, *rollout_ids: int) -> RecordBatch:
    return RecordBatch(Step(step), tuple(RolloutId(rollout_id) for rollout_id in rollout_ids))


def close(lease_id: int, reason: str = "stale") -> CloseAttempt:
    return CloseAttempt(LeaseId(lease_id), 0, reason)


def acknowledged_by_a_killed_writer(path: Path, count: int) -> set[int]:
    """Rollouts that a writer process said were stored before SIGKILL, at least ``count``."""
    command = [sys.executable, "-m", "tests.coordinator.ledger_writer", str(path)]
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
    rows = await reopened._submit(lambda connection: connection.execute("SELECT rollout_id FROM rollouts").fetchall())
    await reopened.close()
    assert acknowledged <= {rollout_id for (rollout_id,) in rows}


async def test_a_batch_comes_back_as_it_was_recorded(ledger: Ledger, tmp_path: Path) -> None:
    await issue(ledger, 10, 11, 12)
    assert await ledger.recorded_batches() == 0
    await ledger.record_batch(batch(4, 12, 10))
    await ledger.close()
    again = Ledger.open(tmp_path / "store.sqlite")
    entries = await again.batch(Step(4))
    assert [(entry.rollout_id, entry.reward, entry.exact) for entry in entries] == [(12, 1.2, False), (10, 1.0, True)]
    assert entries[0].prompt_token_ids == (7, 8, 65_536)
    assert entries[0].group_id == 1
    assert entries[0].rollout == rollout_to_pb(rollout(12))
    assert await again.recorded_batches() == 5
    assert await again.batch(Step(3)) == []
    assert await again.mixture_position() == '{"next":1}'
    assert await again.high_water() == HighWater(GroupId(1), LeaseId(12), FencingToken(1), RolloutId(12))
    await again.close()


async def test_ages_are_counted_at_the_step_of_the_batch(ledger: Ledger) -> None:
    assert await ledger.trained_ages() == {}
    await issue(ledger, 10, 11, 12)
    oldest = rollout(10).oldest_version
    await ledger.record_batch(batch(4, 12, 10))
    await ledger.record_batch(batch(5, 11))
    assert await ledger.trained_ages() == {4 - oldest: 2, 5 - oldest: 1}


async def test_a_rollout_is_stored_once(ledger: Ledger) -> None:
    await issue(ledger, 1)
    ledger.record_attempt(attempt(2))
    for repeated in ([store(1, rollout(2))], [store(2, rollout(1))], [store(2, rollout(2)), store(3, rollout(2))]):
        with pytest.raises(StoreError, match="contradicts"):
            await ledger.store_rollouts(repeated)
    assert (await ledger.counts()).accepted == 1  # the first half of the last one was undone
    await ledger.store_rollouts([store(2, rollout(2))])
    assert (await ledger.counts()).accepted == 2


async def test_what_was_never_issued_is_not_stored(ledger: Ledger) -> None:
    await ledger.record_group(group(), "{}")
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        await ledger.store_rollouts([store(1, rollout(1))])
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        await ledger.record_attempt(attempt(1, group_id=2))


async def test_no_rollout_is_in_two_batches(ledger: Ledger) -> None:
    await issue(ledger, 1, 2, 3)
    await ledger.record_batch(batch(0, 1, 2))
    with pytest.raises(StoreError, match=r"batches\.rollout_id"):
        await ledger.record_batch(batch(1, 3, 2))
    with pytest.raises(StoreError, match="already recorded"):
        await ledger.record_batch(batch(0, 3))
    assert await ledger.batch(Step(1)) == []
    await ledger.record_batch(batch(1, 3))
    assert (await ledger.counts()).trained == 3


async def test_dropped_and_unscored_rollouts_are_not_trained_on(ledger: Ledger) -> None:
    await issue(ledger, 1, 2)
    ledger.record_attempt(attempt(3))
    await ledger.store_rollouts([store(3, rollout(3))])
    await ledger.close_attempt(close(2))
    with pytest.raises(StoreError, match="a dropped rollout cannot be trained on"):
        await ledger.record_batch(batch(0, 1, 2))
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        await ledger.record_batch(batch(0, 1, 3))
    await ledger.record_batch(batch(0, 1))
    with pytest.raises(StoreError, match="a trained rollout cannot be dropped"):
        await ledger.close_attempt(close(1))


async def test_an_attempt_is_closed_once(ledger: Ledger) -> None:
    await issue(ledger, 1)
    await ledger.close_attempt(close(1))
    for lease_id in (1, 99):
        with pytest.raises(StoreError, match="not open"):
            await ledger.close_attempt(close(lease_id))
    with pytest.raises(StoreError):
        await ledger.record_score(RolloutId(1), 1.0, exact=True)


async def test_counts_add_up(ledger: Ledger) -> None:
    await issue(ledger, 1, 2, 3, 4, 5)
    ledger.record_attempt(attempt(6))
    ledger.close_attempt(close(3))
    ledger.close_attempt(close(4, "peer_left"))
    await ledger.record_batch(batch(0, 1))
    assert await ledger.counts() == LedgerCounts(
        issued=6, accepted=5, trained=1, open=3, dropped={"stale": 1, "peer_left": 1}
    )
    assert await ledger.close_open_attempts("run_ended") == 3
    assert await ledger.counts() == LedgerCounts(
        issued=6, accepted=5, trained=1, open=0, dropped={"stale": 1, "peer_left": 1, "run_ended": 3}
    )


async def test_versions_are_announced_once_and_never_changed(ledger: Ledger) -> None:
    assert await ledger.newest_version() is None
    assert await ledger.record_version(Epoch(0), Version(0), b"a")
    assert await ledger.record_version(Epoch(0), Version(9), b"b")
    assert not await ledger.record_version(Epoch(0), Version(9), b"b")
    with pytest.raises(StoreError, match="other content"):
        await ledger.record_version(Epoch(0), Version(9), b"c")
    assert await ledger.record_version(Epoch(1), Version(4), b"d")
    assert await ledger.newest_version() == StoredVersion(Epoch(1), Version(4), b"d")
    assert await ledger.version(Version(9)) == StoredVersion(Epoch(0), Version(9), b"b")
    assert await ledger.version(Version(5)) is None


async def test_the_newest_versions_are_those_of_the_newest_epoch(ledger: Ledger) -> None:
    assert await ledger.newest_versions(2) == []
    for epoch, version in ((0, 90), (1, 2), (1, 4), (1, 6)):
        await ledger.record_version(Epoch(epoch), Version(version), b"a")
    assert [(one.epoch, one.version) for one in await ledger.newest_versions(2)] == [(1, 6), (1, 4)]


async def test_an_invite_is_claimed_by_as_many_as_it_is_good_for(ledger: Ledger) -> None:
    await ledger.create_invite(b"hash", "peer", quota=3, expires_unix_s=100.0)

    def claim(peer: str, *, role: str = "peer", token: bytes = b"hash", at: float = 50.0) -> asyncio.Future[None]:
        return ledger.claim_invite(token, role, PeerId(peer), now_unix_s=at)

    together = await asyncio.gather(*(claim(f"p{number}") for number in range(8)), return_exceptions=True)
    assert sum(outcome is None for outcome in together) == 3
    assert all(outcome is None or isinstance(outcome, JoinRefused) for outcome in together)
    await claim("p0")  # the same identity again uses nothing up
    for refused, words in (
        (claim("p9"), "used up"),
        (claim("p0", role="learner"), "for the role peer"),
        (claim("p0", token=b"other"), "not one of this run"),
        (claim("p0", at=100.0), "expired"),
    ):
        with pytest.raises(JoinRefused, match=words):
            await refused


async def events(ledger: Ledger) -> list[tuple[int, str, str]]:
    """The run's story: order, detail, cause."""
    query = "SELECT event_order, detail, cause FROM events ORDER BY event_order"
    return await ledger._submit(lambda connection: connection.execute(query).fetchall())


async def test_steps_events_and_facts(ledger: Ledger) -> None:
    await ledger.record_step(Step(1), {"loss": 0.5})
    await ledger.record_step(Step(2), {"loss": 0.25})
    await ledger.record_step(Step(1), {"loss": 0.75})
    assert await ledger.steps() == [(1, {"loss": 0.75}), (2, {"loss": 0.25})]
    await ledger.record_note(Note("peer", "p1", "joined"), cause="session")
    await ledger.record_event("peer", "p1", "left")
    assert await events(ledger) == [(1, "joined", "session"), (2, "left", "")]
    assert await ledger.get_meta("run_id") is None
    await ledger.set_meta("run_id", "a")
    await ledger.set_meta("run_id", "b")
    assert await ledger.get_meta("run_id") == "b"


@pytest.mark.parametrize(
    "statement",
    ["UPDATE events SET detail = ''", "DELETE FROM events", "UPDATE batches SET step = 9", "DELETE FROM batches"],
)
async def test_history_is_not_rewritten(ledger: Ledger, statement: str) -> None:
    await issue(ledger, 1)
    ledger.record_event("a", "b", "c")
    await ledger.record_batch(batch(0, 1))
    with pytest.raises(StoreError, match="never"):
        await ledger._submit(lambda connection: connection.execute(statement))


async def test_changes_are_made_in_order_without_waiting(ledger: Ledger) -> None:
    """An attempt and its rollout may be handed over in one breath."""
    ledger.record_group(group(), "{}")
    for number in range(1, 2001):
        ledger.record_attempt(attempt(number))
        ledger.store_rollouts([store(number, rollout(number))])
    assert (await ledger.counts()).accepted == 2000


async def test_close_commits_what_is_queued(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    for number in range(500):
        ledger.record_event("a", "b", str(number))
    await ledger.close()
    await ledger.close()
    with pytest.raises(StoreError, match="closed"):
        await ledger.get_meta("run_id")
    again = Ledger.open(tmp_path / "store.sqlite")
    assert len(await events(again)) == 500
    await again.close()


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite", queue_max=10)
    futures = [ledger.record_event("a", "b", str(number)) for number in range(15)]  # the loop does not turn meanwhile
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False] * 10 + [True] * 5
    await ledger.room()
    for number in range(50):
        await ledger.room()
        ledger.record_event("a", "b", str(number))
    await ledger.close()


async def test_a_full_disk_ends_the_ledger(ledger: Ledger) -> None:
    await ledger.set_meta("run_id", "a")

    def leave_no_room(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    await ledger._submit(leave_no_room)
    with pytest.raises(StoreError, match="full") as caught:
        await ledger.set_meta("large", "x" * 100_000)
    assert "free some space" in caught.value.fix
    assert (await ledger.failed()) is caught.value
    with pytest.raises(StoreError, match="full"):
        await ledger.get_meta("run_id")


async def test_a_disk_that_turns_read_only_ends_the_ledger(ledger: Ledger) -> None:
    await ledger._submit(lambda connection: connection.execute("PRAGMA query_only = ON"))
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
async def test_a_store_that_cannot_be_used(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    spoil(folder / "store.sqlite")
    with pytest.raises(StoreError) as caught:
        Ledger.open(folder / "store.sqlite")
    assert words in caught.value.fix


async def test_one_coordinator_at_a_time(ledger: Ledger) -> None:
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
    """Printed, not asserted: 1,000 rollouts of about 12 KB, each acknowledged by itself."""
    await ledger.record_group(group(), "{}")
    for number in range(1, 1001):
        ledger.record_attempt(attempt(number))
    rollouts = [rollout(number, tokens=4000) for number in range(1, 1001)]
    size = rollout_to_pb(rollouts[0]).ByteSize()
    began = time.perf_counter()

    async def storing(first: int) -> None:
        for number in range(first, 1001, 64):
            await ledger.store_rollouts([store(number, rollouts[number - 1])])

    await asyncio.gather(*(storing(first) for first in range(1, 65)))
    took_s = time.perf_counter() - began
    with capsys.disabled():
        print(f"\nledger: {1000 / took_s:,.0f} durable rollouts of {size / 1000:.1f} KB a second, 64 at a time")
    assert (await ledger.counts()).accepted == 1000
