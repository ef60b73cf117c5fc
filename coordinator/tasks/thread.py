"""The thread that a task's generator runs in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Queue
from typing import TypeVar

T = TypeVar("T")

WAITING_MAX = 1024  # calls that may wait; callers give up on theirs at a deadline, so only a hung generator gets there


class TaskThread:
    """One thread, one call at a time and in order: generators are not made for more.

    It is a daemon thread, because the interpreter waits at its exit for the threads of an executor, and a generator
    that hangs would then keep the process for ever.
    """

    def __init__(self) -> None:
        self._calls: Queue[Callable[[], None] | None] = Queue(WAITING_MAX)
        threading.Thread(target=self._run, name="task", daemon=True).start()

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. A caller that gives up before its turn has come is passed over.

        Raises:
            queue.Full: WAITING_MAX calls wait already.
        """
        future: Future[T] = Future()
        self._calls.put_nowait(lambda: _settle(future, work))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let the thread end after the calls that wait. Does not wait for it."""
        if not self._calls.full():
            self._calls.put_nowait(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
