"""Test compaction: the store of a long run stays small, with exact counts of everything that it discarded."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.core.events.actions import CloseGroup
from coordinator.ledger import compaction
from coordinator.ledger.compaction import SHARED_EVENTS_AT_ONCE, Compactor
from coordinator.ledger.event_archive import read_segment, segments
from coordinator.ledger.retention import (
    EVENT_BYTES,
    GROUPS_MAX,
    Retention,
    horizon_step,
    next_group_count,
    segments_to_delete,
)
from coordinator.ledger.store import StoreCounts
from coordinator.stores.sqlite import Ledger
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import RunFolderError, StoreError
from rollcast.wire.ids import Epoch, GroupId, RolloutId, Step, Version
from tests.coordinator.stored_work import attempt, batch, close, group, rollout, store_rollout

STALENESS = 2

GROUPS = 4  # a step; one of them is dropped

RETENTION = Retention(margin_steps=3, events_kept=40, segment_events=20, segments_bytes_max=1 << 20, steps_kept=10)


@pytest.fixture
def unrested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one transaction follow the other at once; most of a test's time would be the rests between them."""
    monkeypatch.setattr(compaction, "REST_SHARE", 0.0)


async def one_step(ledger: Ledger, step: int) -> None:
    """Record a step: groups of two slots each, one group dropped, one attempt expired, some events, a version."""
    ids = range(step * GROUPS + 1, (step + 1) * GROUPS + 1)
    ledger.record_version(Epoch(0), Version(step), b"announcement" * 50)
    for one in ids:
        ledger.record_group(group(one), "{}")
        ledger.record_attempt(attempt(one * 2, 0, group_id=one))
        ledger.close_attempt(close(one * 2, "lease_expired"))
        for index in (0, 1):
            ledger.record_attempt(attempt(one * 2 + 1, index, group_id=one))
            done = rollout(one * 2 + 1, index, group_id=one, version=max(0, step - STALENESS), tokens=500)
            ledger.store_rollouts([store_rollout(one * 2 + index, done)])
            ledger.record_score(RolloutId(one * 2 + index), Score(0.5, False))
        ledger.record_event("group", str(one), "done", cause=f"step {step}")
    for index in (0, 1):
        ledger.close_attempt(close(ids[0] * 2 + 1, "stale", sample_index=index))
    ledger.close_group(CloseGroup(GroupId(ids[0])))
    ledger.record_batch(batch(step, *(one * 2 + index for one in ids[1:] for index in (0, 1))))
    await ledger.record_step(Step(step + 1), {"loss": 1.0})


async def pages(ledger: Ledger) -> int:
    """Return the number of pages of the ledger's file."""
    query = "PRAGMA page_count"
    ((count,),) = await ledger._thread.submit(lambda connection: connection.execute(query).fetchall())
    return int(count)


async def run(ledger: Ledger, folder: Path, steps: range) -> list[int]:
    """Record steps with a checkpoint each; return the store's pages after every twenty steps."""
    checkpoint = 0
    compactor = Compactor(
        ledger,
        RETENTION,
        folder / "events",
        oldest_checkpoint_step=lambda: Step(checkpoint),
        oldest_trained_age=lambda: STALENESS,
    )
    sizes = []
    for step in steps:
        await one_step(ledger, step)
        checkpoint = step - 1
        if step % 20 == 19:
            await compactor.once()
            sizes.append(await pages(ledger))
    return sizes


@pytest.mark.usefixtures("unrested")
async def test_a_long_run_stays_small_and_exact(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    sizes = await run(ledger, tmp_path, range(40))
    assert max(sizes[1:]) <= sizes[0] * 1.5
    await ledger.close()
    ledger = Ledger.open(tmp_path / "store.sqlite")
    sizes += await run(ledger, tmp_path, range(40, 60))
    assert max(sizes[1:]) <= sizes[0] * 1.5
    issued = 60 * GROUPS * 3
    trained, stale = 60 * (GROUPS - 1) * 2, 60 * 2
    expected = StoreCounts(issued, trained + stale, trained, 0, {"lease_expired": 60 * GROUPS, "stale": stale})
    assert await ledger.counts() == expected
    ages = Counter(min(step, STALENESS) for step in range(60))
    assert await ledger.trained_ages() == {age: count * (GROUPS - 1) * 2 for age, count in ages.items()}
    assert (await ledger.high_water()).rollout_id == 60 * GROUPS * 2 + 1
    for lease in (2, 3, 201):
        with pytest.raises(StoreError, match="contradicts"):
            await ledger.record_attempt(attempt(lease, 5, group_id=60 * GROUPS))
    await ledger.close()


@pytest.mark.usefixtures("unrested")
async def test_history_continues_in_archive_files(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    await run(ledger, tmp_path, range(40))
    archived = [one for path in segments(tmp_path / "events") for one in read_segment(path)]
    query = "SELECT event_order FROM events ORDER BY event_order"
    kept = [order for (order,) in await ledger._thread.submit(lambda connection: connection.execute(query).fetchall())]
    assert [one.order for one in archived] + kept == list(range(1, 40 * GROUPS + 1))
    assert RETENTION.events_kept <= len(kept) < RETENTION.events_kept + RETENTION.segment_events
    await ledger.close()


async def test_a_shared_store_keeps_its_newest_events(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    count = 4 * SHARED_EVENTS_AT_ONCE
    for number in range(count):
        ledger.record_event("kind", "subject", str(number), cause="test")
    kept = count // 2 - 5
    compactor = Compactor(
        ledger,
        Retention(events_kept=7, segments_bytes_max=kept * EVENT_BYTES),
        None,
        oldest_checkpoint_step=lambda: None,
        oldest_trained_age=lambda: STALENESS,
    )
    await compactor.once()
    query = "SELECT event_order FROM events ORDER BY event_order"
    orders = [
        order for (order,) in await ledger._thread.submit(lambda connection: connection.execute(query).fetchall())
    ]
    assert orders == list(range(count // 2 + 1, count + 1))  # whole groups are deleted, so a few more stay
    await ledger.close()


def test_a_shared_store_keeps_no_fewer_events_than_one_with_files() -> None:
    assert Retention(events_kept=70, segments_bytes_max=0).shared_events_kept == 70


async def test_no_compaction_before_the_learner_reports_its_checkpoints(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    for step in range(10):
        await one_step(ledger, step)
    compactor = Compactor(
        ledger,
        RETENTION,
        tmp_path / "events",
        oldest_checkpoint_step=lambda: None,
        oldest_trained_age=lambda: STALENESS,
    )
    await compactor.once()
    assert compactor.groups_compacted == 0
    assert len(await ledger.batch(Step(0))) == (GROUPS - 1) * 2
    await ledger.close()


async def test_others_are_served_between_the_transactions(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    for step in range(25):
        await one_step(ledger, step)
    compactor = Compactor(
        ledger,
        RETENTION,
        tmp_path / "events",
        oldest_checkpoint_step=lambda: Step(23),
        oldest_trained_age=lambda: STALENESS,
    )
    compacting = asyncio.create_task(compactor.once())
    served = 0
    while not compacting.done():
        await ledger.set_meta("a", "b")
        served += 1
    await compacting
    assert compactor.groups_compacted == 72
    assert served >= 3
    await ledger.close()


TEN_STEPS = Retention(margin_steps=10)


@pytest.mark.parametrize(
    ("checkpoint", "recorded", "horizon"),
    [(None, 100, 0), (0, 100, 0), (13, 100, 0), (50, 100, 36), (100, 100, 86), (200, 100, 86)],
)
def test_batches_that_a_learner_may_request_are_kept(checkpoint: int | None, recorded: int, horizon: int) -> None:
    step = None if checkpoint is None else Step(checkpoint)
    assert (
        horizon_step(TEN_STEPS, oldest_checkpoint_step=step, recorded_batches=recorded, oldest_trained_age=4) == horizon
    )


def test_transactions_find_their_size() -> None:
    assert next_group_count(16, 0.030, aim_s=0.025) == 8
    assert next_group_count(1, 9.0, aim_s=0.025) == 1
    assert next_group_count(16, 0.020, aim_s=0.025) == 16
    assert next_group_count(16, 0.001, aim_s=0.025) == 32
    assert next_group_count(GROUPS_MAX, 0.001, aim_s=0.025) == GROUPS_MAX


def test_oldest_segments_are_deleted_first() -> None:
    assert segments_to_delete([5, 5, 5], 15) == 0
    assert segments_to_delete([5, 5, 5], 14) == 1
    assert segments_to_delete([5, 5, 5], 4) == 3
    assert segments_to_delete([], 0) == 0


async def test_a_folder_that_is_full_does_not_end_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    compactor = Compactor(
        cast(Any, None), RETENTION, None, oldest_checkpoint_step=lambda: None, oldest_trained_age=lambda: 0
    )
    errors = [RunFolderError("no space")]
    again = asyncio.Event()

    async def once() -> None:
        if errors:
            raise errors.pop()
        again.set()

    monkeypatch.setattr(compactor, "once", once)
    running = asyncio.create_task(compactor.run(0.001))
    await asyncio.wait_for(again.wait(), 10.0)
    running.cancel()
