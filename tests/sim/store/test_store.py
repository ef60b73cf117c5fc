from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from coordinator.core.events.actions import RecordGroup
from rollcast.runtime.errors import StoreError
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.process import Process
from rollcast.sim.store.store import MemoryStore
from rollcast.sim.store.tables import Tables
from rollcast.wire.ids import GroupId, Step
from tests.coordinator.stored_work import attempt, batch, score
from tests.coordinator.stores.store_conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    async def open_store(self, folder: Path) -> MemoryStore:
        self.folders = getattr(self, "folders", {})
        return MemoryStore(self.folders.setdefault(folder, Tables()))


def group(number: int) -> RecordGroup:
    return RecordGroup(GroupId(number), "p", (1,), str(number))


def machine() -> tuple[Agenda, Process, Disk]:
    agenda = Agenda()
    process = Process("coordinator", agenda)
    process.start()
    return agenda, process, Disk(Random(0))


def test_changes_that_come_during_a_commit_share_the_next_one() -> None:
    agenda, process, disk = machine()
    disk.state.sync_s = 1.0
    store, done = MemoryStore(Tables(), process, disk), []
    for number in (1, 2, 3):
        store.record_group(group(number), "").add_done_callback(
            lambda _, number=number: done.append((agenda.now, number))
        )
    agenda.run(10.0)
    first, second, third = (at_s for at_s, _ in done)
    assert [number for _, number in done] == [1, 2, 3]
    assert 0.5 <= first < second == third


def test_a_crash_loses_waiting_changes_and_perhaps_those_being_committed() -> None:
    kept = set()
    for seed in range(20):
        _, process, disk = machine()
        store = MemoryStore(Tables(), process, disk)
        for number in (1, 2):
            store.record_group(group(number), "")
        process.kill()
        store.crash(Random(seed))
        kept.add(store.tables.high_water().group_id)
    assert kept == {0, 1}


def test_a_full_disk_ends_the_store() -> None:
    agenda, process, disk = machine()
    store = MemoryStore(Tables(), process, disk)
    disk.state.full = True
    first, second = store.record_group(group(1), ""), store.record_group(group(2), "")
    agenda.run(1.0)
    assert isinstance(first.exception(), StoreError)
    assert isinstance(second.exception(), StoreError)
    assert isinstance(store.get_meta("x").exception(), StoreError)


async def test_finished_groups_are_deleted_and_still_refused() -> None:
    store = MemoryStore(Tables(steps_kept=2))
    for number in range(1, 6):
        await score(store, number)
        await store.record_batch(batch(number - 1, number))
    assert len(await store.batch(Step(4))) == 1
    assert await store.batch(Step(1)) == []
    assert (await store.counts()).trained == 5
    with pytest.raises(StoreError):
        await store.record_attempt(attempt(1, group_id=5))
