"""Test publications in the background, and the epochs that versions belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from learner.publishing.epochs import EpochStart, Replay
from learner.publishing.growth import Write, nothing_left
from learner.publishing.publications import Publications
from learner.publishing.publisher import Publisher
from learner.publishing.versions import Freezing
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.errors import RunFolderError
from rollcast.wire.ids import Version

SNAPSHOT = Snapshot((), b"")


class ScriptedPublisher:
    """A publisher that keeps and publishes a version when the test lets it."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.may_keep = asyncio.Event()
        self.may_finish = asyncio.Event()
        self.error: Exception | None = None
        self.snapshot: Snapshot | Freezing = SNAPSHOT

    async def publish(self, version: Version, snapshot: Snapshot | Freezing, *, on_kept: Callable[[], None]) -> float:
        self.story.append(f"start {version}")
        self.snapshot = snapshot
        await self.may_keep.wait()
        if self.error is not None:
            raise self.error
        on_kept()
        await self.may_finish.wait()
        self.story.append(f"end {version}")
        return 1.5


def publications() -> tuple[Publications, ScriptedPublisher]:
    publisher = ScriptedPublisher()
    return Publications(cast(Publisher, publisher)), publisher


async def test_one_at_a_time_and_in_order() -> None:
    running, publisher = publications()
    publisher.may_keep.set()
    publisher.may_finish.set()
    for version in range(3):
        await running.start(Version(version), SNAPSHOT)
    await running.finish()
    assert publisher.story == ["start 0", "end 0", "start 1", "end 1", "start 2", "end 2"]
    assert running.last_s == 1.5
    assert running.under_way is None


async def test_starting_does_not_wait_for_the_origin() -> None:
    running, publisher = publications()
    await running.start(Version(0), SNAPSHOT)
    kept = asyncio.ensure_future(running.kept()())
    await asyncio.sleep(0)
    assert not kept.done()
    publisher.may_keep.set()
    async with asyncio.timeout(5.0):
        await kept
    assert running.under_way is not None
    await running.cancel()
    assert publisher.story == ["start 0"]


async def test_a_snapshot_that_is_still_to_be_written_goes_to_the_publisher(tmp_path: Path) -> None:
    running, publisher = publications()
    publisher.may_keep.set()
    publisher.may_finish.set()
    freezing = Freezing(Write((), nothing_left), tmp_path / "state", tmp_path)
    await running.start(Version(0), freezing)
    await running.finish()
    assert publisher.story == ["start 0", "end 0"]
    assert publisher.snapshot is freezing


async def test_waiting_until_kept_is_about_the_version_of_that_moment() -> None:
    running, publisher = publications()
    publisher.may_keep.set()
    publisher.may_finish.set()
    await running.start(Version(0), SNAPSHOT)
    first = running.kept()
    await running.finish()
    publisher.may_keep.clear()
    await running.start(Version(1), SNAPSHOT)
    async with asyncio.timeout(5.0):
        await first()
    await running.cancel()


async def test_a_version_is_announced_once_its_publication_has_ended() -> None:
    running, publisher = publications()
    await running.announced()()  # none is in flight
    publisher.may_keep.set()
    await running.start(Version(0), SNAPSHOT)
    announced = asyncio.ensure_future(running.announced()())
    await running.kept()()
    assert not announced.done()
    publisher.may_finish.set()
    async with asyncio.timeout(60.0):
        await announced
    assert publisher.story == ["start 0", "end 0"]


async def test_a_failure_reaches_the_waiting_caller() -> None:
    running, publisher = publications()
    publisher.error = RunFolderError("disk full")
    publisher.may_keep.set()
    await running.start(Version(0), SNAPSHOT)
    with pytest.raises(RunFolderError):
        await running.kept()()
    with pytest.raises(RunFolderError):
        await running.announced()()

    running, publisher = publications()
    publisher.error = RunFolderError("disk full")
    publisher.may_keep.set()
    await running.start(Version(0), SNAPSHOT)
    with pytest.raises(RunFolderError):
        await running.start(Version(1), SNAPSHOT)


STARTS = [EpochStart(1, 4, 6), EpochStart(2, 9, 9)]


def test_a_run_without_epochs_has_one_end_of_replay() -> None:
    replay = Replay(0, [], recorded_batches=3)
    assert [replay.jump(step) for step in range(4)] == [None] * 4
    assert [replay.ends(step) for step in (2, 3, 3, 4)] == [False, True, False, False]
    assert replay.epoch_starts_at == 0


def test_jumps_are_made_where_the_run_made_them_and_once() -> None:
    replay = Replay(0, STARTS, recorded_batches=12)
    assert replay.jump(3) is None
    assert replay.jump(4) == STARTS[0]
    assert replay.jump(6) is None
    assert replay.jump(9) == STARTS[1]
    assert replay.jump(9) is None


def test_another_epoch_lies_ahead_until_its_start() -> None:
    replay = Replay(0, STARTS, recorded_batches=12)
    assert replay.epoch_ahead
    replay.jump(4)
    assert replay.epoch_ahead, "the second one"
    replay.jump(9)
    assert not replay.epoch_ahead


def test_batches_recorded_meanwhile_are_trained_on_first() -> None:
    replay = Replay(0, [], recorded_batches=3)
    assert replay.ends(3)
    replay.extend(5)
    assert [replay.ends(step) for step in (3, 4, 5)] == [False, False, True]


def test_epochs_behind_a_checkpoint_are_over() -> None:
    replay = Replay(1, STARTS, recorded_batches=12)
    assert replay.epoch_starts_at == 6
    assert replay.jump(6) is None
    assert replay.jump(9) == STARTS[1]
    assert Replay(2, STARTS, recorded_batches=12).jump(12) is None
