"""Test the leadership of two simulated coordinators: the row, its fence, and what a store refuses after a take-over."""

from __future__ import annotations

from random import Random

from coordinator.core.events.actions import RecordGroup
from coordinator.stores.leadership import TTL_S
from rollcast.runtime.errors import LeadershipLost
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.kernel.process import Process
from rollcast.sim.store.leadership import Fence, LeadershipRow
from rollcast.sim.store.store import MemoryStore
from rollcast.sim.store.tables import Tables
from rollcast.wire.ids import GroupId


def test_a_standby_takes_the_row_once_its_time_is_over_and_raises_the_epoch() -> None:
    row = LeadershipRow()
    assert row.take(0.0) == 1
    assert row.renew(1, 1.0)
    assert row.take(1.0 + TTL_S) is None
    assert row.take(1.001 + TTL_S) == 2
    assert not row.renew(1, 1.002 + TTL_S)
    assert row.take(2.0 + TTL_S) is None


def leading(tables: Tables, row: LeadershipRow, epoch: int, commits: list[int]) -> tuple[Agenda, MemoryStore]:
    agenda = Agenda()
    process = Process("coordinator", agenda)
    process.start()
    return agenda, MemoryStore(tables, process, Disk(Random(0)), Fence(row, epoch, commits.append))


def group(number: int) -> RecordGroup:
    return RecordGroup(GroupId(number), "p", (1,), str(number))


def test_a_leader_commits_until_another_one_leads_and_then_nothing_any_more() -> None:
    row, tables, commits = LeadershipRow(), Tables(), list[int]()
    epoch = row.take(0.0)
    assert epoch == 1
    agenda, store = leading(tables, row, epoch, commits)
    store.record_group(group(1), "")
    agenda.run(1.0)
    late = store.record_group(group(2), "")
    row.take(2.0 * TTL_S)
    agenda.run(2.0)
    assert isinstance(late.exception(), LeadershipLost)
    assert isinstance(store.record_group(group(3), "").exception(), LeadershipLost)
    assert tables.high_water().group_id == 1
    assert commits == [1]


def test_a_killed_leader_leaves_nothing_half_committed_after_a_take_over() -> None:
    for seed in range(8):
        row, tables = LeadershipRow(), Tables()
        row.take(0.0)
        _, store = leading(tables, row, 1, [])
        store.record_group(group(1), "")
        row.take(2.0 * TTL_S)
        store.crash(Random(seed))
        assert tables.high_water().group_id == 0
