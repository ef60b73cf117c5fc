from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.events.actions import RecordEpoch
from coordinator.ledger.sqlite import Ledger
from coordinator.recovery.backup import STEPS_SPARE, back_up, restore
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Epoch, Step, Version
from tests.coordinator import stored_work as work


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """Of a run with two recorded batches and versions 0 to 2, whose steps took 10 s at least."""
    folder = RunFolder(tmp_path / "run").prepare()
    ledger = Ledger.open(folder.ledger)
    await ledger.set_meta("run_id", "run-1")
    for version in range(3):
        await ledger.record_version(Epoch(0), Version(version), b"announcement")
    await work.score(ledger, 1, 2, 3)
    await ledger.record_batch(work.batch(0, 1))
    await ledger.record_batch(work.batch(1, 2))
    for step, at_unix_s in ((1, 1_000.0), (2, 1_025.0), (3, 1_035.0)):
        await ledger.record_step(Step(step), {})
        await ledger._thread.submit(
            lambda connection, step=step, at=at_unix_s: connection.execute(
                "UPDATE steps SET reported_unix_s = ? WHERE step = ?", (at, step)
            )
        )
    await ledger.close()
    back_up(folder, tmp_path / "backup", with_secrets=True, progress=lambda done, total: None)
    return tmp_path / "backup"


async def test_a_restored_run_goes_on_above_what_can_have_been_published(backup: Path, tmp_path: Path) -> None:
    again = RunFolder(tmp_path / "again")
    (created, _) = restore(backup, RunFolder(tmp_path / "elsewhere"), nothing_lost=True)
    _, epoch = restore(backup, again, now_unix_s=created.created_unix_s + 95.0)
    lost = 10 + STEPS_SPARE  # 95 s at 10 s a step
    assert epoch == RecordEpoch(Epoch(1), Step(2), Step(2 + lost), Version(2))
    ledger = Ledger.open(again.ledger)
    assert await ledger.epochs() == [epoch]
    assert await ledger.recorded_batches() == 2 + lost
    assert [entry.rollout_id for entry in await ledger.batch(Step(1))] == [2]
    assert await ledger.batch(Step(2)) == []
    await ledger.close()


async def test_a_run_that_lost_nothing_goes_on_as_it_was(backup: Path, tmp_path: Path) -> None:
    _, epoch = restore(backup, RunFolder(tmp_path / "again"), nothing_lost=True)
    assert epoch is None
    ledger = Ledger.open(tmp_path / "again" / "store.sqlite")
    assert (await ledger.epochs(), await ledger.recorded_batches()) == ([], 2)
    await ledger.close()


async def test_a_run_that_never_published_is_set_apart_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").prepare()
    ledger = Ledger.open(folder.ledger)
    await ledger.set_meta("run_id", "run-1")
    await ledger.close()
    made = back_up(folder, tmp_path / "backup", with_secrets=True, progress=lambda done, total: None)
    _, epoch = restore(tmp_path / "backup", RunFolder(tmp_path / "again"), now_unix_s=made.created_unix_s + 5.0)
    assert epoch == RecordEpoch(Epoch(1), Step(0), Step(5 + STEPS_SPARE), None)
