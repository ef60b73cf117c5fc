"""Waits with a deadline, and tasks in the background."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from random import Random

import pytest
from structlog.testing import capture_logs

from rollcast.runtime.background import Background, or_fail
from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.waits import backoff_delays_s, cancel_and_wait, deadline, result_or_released


async def test_deadline_names_what_it_waited_for() -> None:
    with pytest.raises(WaitTimedOut, match=r"waited 0.01 s for the moon"):
        async with deadline(0.01, "the moon"):
            await asyncio.Event().wait()


async def test_time_in_which_the_loop_did_not_run_is_not_waited() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def come() -> None:
        time.sleep(0.4)  # noqa: ASYNC251  # the whole process does not run, as on a busy machine
        for _ in range(20):  # what came meanwhile takes some turns of the loop
            await asyncio.sleep(0)
        answer.set_result("the moon")

    coming = asyncio.create_task(come())
    async with deadline(0.2, "the moon"):
        assert await answer == "the moon"
    await coming


async def test_a_timeout_of_the_body_is_not_ours() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with deadline(10.0, "the moon"):
            raise TimeoutError("somebody else's")
    assert not isinstance(caught.value, WaitTimedOut)


def test_backoff_is_jittered_under_a_rising_ceiling() -> None:
    delays = list(islice(backoff_delays_s(Random(1), first_s=0.1, most_s=1.0), 20))
    for index, delay in enumerate(delays):
        assert 0.0 <= delay <= min(1.0, 0.1 * 2**index)
    assert len(set(delays)) == 20


async def test_a_result_that_nobody_takes_any_more_is_released() -> None:
    released: list[str] = []
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(result_or_released(future, released.append))
    await asyncio.sleep(0)
    future.set_result("a link")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert released == ["a link"]


async def test_a_result_that_is_taken_is_not_released_nor_one_that_never_came() -> None:
    released: list[str] = []
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, "a link")
    assert await result_or_released(future, released.append) == "a link"
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with pytest.raises(WaitTimedOut):
        async with deadline(0.01, "a link"):
            await result_or_released(never, released.append)
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("none"))
    with pytest.raises(ValueError, match="none"):
        await result_or_released(failed, released.append)
    assert released == []


async def test_what_breaks_a_task_is_logged_and_costs_the_others_nothing() -> None:
    background, ends = Background("an errand broke"), asyncio.Event()
    done: list[str] = []

    async def breaks() -> None:
        raise ValueError("a fault of ours")

    async def waits() -> None:
        await ends.wait()
        done.append("waited")

    with capture_logs() as logs:
        background.spawn(breaks())
        background.spawn(waits())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [(line["event"], line["log_level"]) for line in logs] == [("an errand broke", "error")]
    ends.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == ["waited"]


async def test_the_end_waits_until_all_have_cleared_up_and_is_no_fault() -> None:
    background = Background("an errand broke")
    cleared: list[int] = []

    async def clears_up(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleared.append(number)

    for number in (1, 2):
        background.spawn(clears_up(number))
    await asyncio.sleep(0)
    with capture_logs() as logs:
        await background.end()
    assert (sorted(cleared), logs) == ([1, 2], [])
    await background.end()


async def test_an_exception_is_passed_on_at_once_and_a_cancellation_is_none() -> None:
    failures: list[Exception] = []
    error = ValueError("a fault of ours")

    async def breaks() -> None:
        raise error

    async def waits() -> None:
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(or_fail(work, failures.append)) for work in (breaks(), waits())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert (failures, tasks[1].cancelled()) == ([error], True)


async def test_cancelled_tasks_have_ended_whatever_they_raise() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            raise ValueError("while it ends")

    async def done() -> None:
        pass

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(done())]
    await asyncio.sleep(0.0)
    await cancel_and_wait(*tasks)
    assert all(task.done() for task in tasks)
    assert isinstance(tasks[0].exception(), ValueError)
