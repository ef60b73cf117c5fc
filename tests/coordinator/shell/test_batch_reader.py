"""Test that batches for the learner are read with their record, in order, and identically when requested again."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.shell import batch_reader
from coordinator.shell.batch_reader import BatchReader
from coordinator.stores.sqlite import Ledger
from rollcast.wire.ids import Step
from tests.coordinator import stored_work as work


async def ids_of(reading: BatchReader, step: int) -> tuple[int, list[list[int]]]:
    size, parts = await reading.read(Step(step))
    return size, [[entry.rollout_id for entry in part] async for part in parts]


async def test_batch_is_read_with_its_record_and_on_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "ROLLOUTS_AT_ONCE", 2)
    monkeypatch.setattr(batch_reader, "PARTS_AHEAD", 2)
    monkeypatch.setattr(batch_reader, "ROLLOUTS_UNPACED", 6)
    ledger = Ledger.open(tmp_path / "store.sqlite")
    await work.score(ledger, *range(1, 12))
    reading = BatchReader(ledger)
    recorded = ledger.record_batch(work.batch(0, *range(9, 0, -1)))
    reading.recording(Step(0))
    expected = (9, [[9, 8], [7, 6], [5, 4], [3, 2], [1]])
    assert await ids_of(reading, 0) == expected
    assert recorded.done(), "nothing is handed out before it is durable"
    assert await ids_of(reading, 0) == expected
    assert await ids_of(BatchReader(ledger, with_routes=True), 0) == (9, [[9, 8, 7, 6], [5, 4, 3, 2], [1]])
    await ledger.record_batch(work.batch(1, 10, 11))
    assert await ids_of(reading, 1) == (2, [[10, 11]])
    await ledger.close()


async def test_an_empty_batch_has_no_parts(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    assert await ids_of(BatchReader(ledger), 0) == (0, [])
    await ledger.close()
