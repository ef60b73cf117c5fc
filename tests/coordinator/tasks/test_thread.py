from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from functools import partial

import pytest

from coordinator.tasks import row_spool as thread_module
from coordinator.tasks.row_spool import TaskThread


async def test_calls_run_one_at_a_time_and_in_order() -> None:
    thread, seen = TaskThread(), list[int]()
    await asyncio.gather(*(thread.run(partial(seen.append, number)) for number in range(50)))
    assert seen == list(range(50))
    names = {await thread.run(lambda: threading.current_thread().name) for _ in range(2)}
    assert names == {"task"}
    thread.close()


async def test_errors_are_raised_and_the_thread_continues() -> None:
    thread = TaskThread()
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: 5) == 5
    thread.close()


async def test_cancelled_call_in_the_queue_is_skipped() -> None:
    thread, gate, made = TaskThread(), threading.Event(), list[str]()
    first = asyncio.create_task(thread.run(gate.wait))
    second = asyncio.create_task(thread.run(lambda: made.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    gate.set()
    async with asyncio.timeout(5.0):
        assert await first
        await thread.run(lambda: made.append("third"))
    assert made == ["third"]
    thread.close()


async def test_queue_behind_a_hung_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "WAITING_MAX", 2)
    thread, gate, running = TaskThread(), threading.Event(), threading.Event()

    def hang() -> bool:
        running.set()
        return gate.wait()

    calls = [asyncio.create_task(thread.run(hang))]
    async with asyncio.timeout(5.0):
        await asyncio.to_thread(running.wait, 5.0)
    calls += [asyncio.create_task(thread.run(lambda: True)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(queue.Full):
        await thread.run(lambda: True)
    thread.close()
    gate.set()
    assert await asyncio.gather(*calls) == [True, True, True]


def test_a_hung_call_does_not_keep_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.coordinator.tasks.hung_task"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ended.stdout == "ends\n"
