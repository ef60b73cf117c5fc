"""Test that losses are noticed: an older ledger, a lost write-ahead log, and a rollout that the disk has changed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.stores.mark import MarkWriter, high_water, mark_path
from coordinator.stores.sqlite import Ledger, connect
from rollcast.runtime.errors import LedgerDamaged
from rollcast.wire.ids import RolloutId, Step
from tests.coordinator.stored_work import batch, score


async def stored(path: Path, *rollouts: int) -> None:
    ledger = Ledger.open(path)
    await score(ledger, *rollouts)
    await ledger.close()


async def test_an_older_ledger_is_refused_with_what_is_lost(tmp_path: Path) -> None:
    path, old = tmp_path / "store.sqlite", tmp_path / "old.sqlite"
    await stored(path, 1)
    shutil.copy(path, old)
    ledger = Ledger.open(path)
    await score(ledger, 2, 3)
    await ledger.record_batch(batch(0, 1))
    await ledger.close()
    await Ledger.open(path).close()  # as it was left it opens
    shutil.copy(old, path)
    with pytest.raises(LedgerDamaged, match="older than it was") as found:
        Ledger.open(path)
    assert "rollouts up to 3, now 1; batches up to 1, now 0" in found.value.cause
    assert "rollcast restore" in found.value.fix
    path.unlink()
    with pytest.raises(LedgerDamaged, match="older than it was"):
        Ledger.open(path)
    mark_path(path).unlink()
    await Ledger.open(path).close()  # the operator goes on without what was lost


async def test_a_lost_write_ahead_log_is_noticed(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.sqlite", tmp_path / "copy" / "store.sqlite"
    copy.parent.mkdir()
    await stored(path, 1)
    ledger = Ledger.open(path)
    await score(ledger, 2)
    assert path.with_name("store.sqlite-wal").stat().st_size > 0
    shutil.copy(path, copy)  # as after a crash that took the log with it
    await ledger.close()
    shutil.copy(mark_path(path), mark_path(copy))
    with pytest.raises(LedgerDamaged, match="older"):
        Ledger.open(copy)


async def test_compaction_lowers_no_mark(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    ledger = Ledger.open(path)
    await score(ledger, 1, 2)
    await ledger.record_batch(batch(0, 1, 2))
    await ledger.compact(Step(5), groups_max=100, steps_kept=0)
    before = await ledger._thread.submit(high_water)
    await ledger.close()
    assert before["rollout_id"] == 2
    await Ledger.open(path).close()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"lease_id": "x"}', "9" * 5000])
async def test_a_mark_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "store.sqlite"
    await stored(path, 1)
    mark_path(path).write_text(text)
    with pytest.raises(LedgerDamaged, match="cannot be read"):
        Ledger.open(path)


async def test_the_mark_is_written_at_most_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    path, now = tmp_path / "store.sqlite", [0.0]
    await stored(path, 1)
    mark = mark_path(path)
    writer = MarkWriter(path, lambda: now[0])
    with closing(connect(path)) as connection:
        mark.unlink()
        for at, written in ((0.0, True), (0.5, False), (1.0, True)):
            now[0] = at
            writer.committed(connection)
            assert mark.exists() is written
            mark.unlink(missing_ok=True)
        writer.committed(connection, last=True)
        assert mark.exists()


async def test_a_rollout_that_the_disk_changed_is_not_trained(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    ledger = Ledger.open(path)
    await score(ledger, 1, 2)
    await ledger.record_batch(batch(0, 1, 2))
    await ledger.close()
    flip_a_bit(path)
    ledger = Ledger.open(path)
    with pytest.raises(LedgerDamaged, match="rollout 1 in the ledger") as found:
        await ledger.rollout(RolloutId(1))
    assert "rollcast restore" in found.value.fix
    with pytest.raises(LedgerDamaged, match="rollout 1 "):
        await ledger.batch(Step(0))
    assert await ledger.rollout(RolloutId(2)) is not None
    await ledger.close()


def flip_a_bit(path: Path) -> None:
    """Change one bit of the first rollout's body in the file, as a bad disk does."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (body,) = connection.execute("SELECT body FROM rollouts WHERE rollout_id = 1").fetchone()
        connection.execute("DROP TRIGGER rollouts_keep")
        changed = body[:-1] + bytes([body[-1] ^ 1])
        connection.execute("UPDATE rollouts SET body = ? WHERE rollout_id = 1", (changed,))
        connection.commit()
