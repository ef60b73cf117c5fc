from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from learner.checkpoints.async_save import Saves
from learner.checkpoints.checkpoint import Checkpoints, HostState
from rollcast.runtime.errors import CheckpointError
from tests.learner.checkpoints.test_checkpoint import host


class FakeCheckpoints:
    """Checkpoints that take as long as a test wants."""

    def __init__(self) -> None:
        self.saved: list[int] = [0]
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: CheckpointError | None = None

    def steps(self) -> list[int]:
        return self.saved[-2:]

    def save(self, state: Mapping[str, Any], host: HostState) -> None:
        assert self.may_end.wait(10.0)
        if self.error is not None:
            raise self.error
        self.saved.append(host.step)


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


@pytest.fixture
def checkpoints() -> FakeCheckpoints:
    return FakeCheckpoints()


@pytest.fixture
def told() -> list[int]:
    return []


@pytest.fixture
async def saves(checkpoints: FakeCheckpoints, told: list[int]) -> AsyncIterator[Saves]:
    with ThreadPoolExecutor(1) as writer:
        saves = Saves(cast(Checkpoints, checkpoints), writer, told.append)
        yield saves
        checkpoints.may_end.set()
        await saves.cancel()


async def test_training_goes_on_while_a_checkpoint_is_written(
    saves: Saves, checkpoints: FakeCheckpoints, told: list[int]
) -> None:
    checkpoints.may_end.clear()
    await saves.start({}, host(3), yes)
    assert saves.under_way is not None
    assert saves.steps() == [0, 3], "versions that it needs must stay"
    second = asyncio.create_task(saves.start({}, host(6), yes))
    await asyncio.sleep(0)
    assert not second.done(), "one copy of the state at a time"
    checkpoints.may_end.set()
    await second
    await saves.finish()
    assert checkpoints.saved == [0, 3, 6]
    assert told == [0, 3]


async def test_what_may_not_be_saved_is_not(saves: Saves, checkpoints: FakeCheckpoints, told: list[int]) -> None:
    await saves.start({}, host(3), no)
    await saves.finish()
    assert (checkpoints.saved, told) == ([0], [])


async def test_a_failure_is_raised_once_it_is_waited_for(saves: Saves, checkpoints: FakeCheckpoints) -> None:
    checkpoints.error = CheckpointError("no space")
    await saves.start({}, host(3), yes)
    with pytest.raises(CheckpointError, match="no space"):
        await saves.finish()
