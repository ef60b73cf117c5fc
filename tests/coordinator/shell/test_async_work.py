from __future__ import annotations

import asyncio

import pytest

from coordinator.core.events.events import Event, Tick
from coordinator.shell.async_work import AsyncWork
from rollcast.runtime.errors import StoreError


class Shell:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.failures: list[Exception] = []
        self.over = False
        self.work = AsyncWork(self.told.append, self.failures.append, lambda: self.over)


async def test_an_event_follows_a_change_that_is_kept() -> None:
    shell, change = Shell(), asyncio.get_running_loop().create_future()
    shell.work.kept(change, Tick())
    assert shell.told == []
    change.set_result(None)
    await asyncio.sleep(0)
    assert shell.told == [Tick()]


async def test_a_change_that_is_refused_ends_the_run() -> None:
    shell, change = Shell(), asyncio.get_running_loop().create_future()
    shell.work.kept(change, Tick())
    change.set_exception(StoreError("the disk is full"))
    await asyncio.sleep(0)
    assert shell.told == []
    assert [str(error) for error in shell.failures] == [str(StoreError("the disk is full"))]


async def test_who_waits_for_a_change_and_goes_away_does_not_take_it_back() -> None:
    shell, change = Shell(), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(shell.work.durable(change, "a change"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not change.cancelled()
    change.set_result(None)


async def test_work_that_fails_ends_a_run_that_goes_on() -> None:
    async def fails() -> None:
        raise ValueError("a bug")

    for over, count in ((False, 1), (True, 0)):
        shell = Shell()
        shell.over = over
        shell.work.start(fails())
        await asyncio.sleep(0.01)
        assert len(shell.failures) == count


async def test_closing_drops_what_is_under_way() -> None:
    shell, ended = Shell(), []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    shell.work.start(waits())
    await asyncio.sleep(0)
    await shell.work.close()
    assert ended == [True]
    assert shell.failures == []
