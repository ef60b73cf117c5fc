"""Hold a task's rows on disk, and run its generator on a thread of its own.

Rows lie in an unnamed temporary file: any of them can be read at once, for eight bytes of memory each.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Queue
from typing import TypeVar

from coordinator.tasks.checks.code_tests import read_tests
from coordinator.tasks.fields import Row
from rollcast.runtime.errors import TaskError

WRITE_BYTES = 1 << 20
WAITING_MAX = 1024  # calls that may wait; callers cancel theirs at a timeout, so only a hung generator reaches it

T = TypeVar("T")


class RowSpool:
    """The rows of an iterable, in its order. The file is deleted when the spool is discarded or the process ends.

    Raises:
        TaskError: the temporary folder is full or cannot be written.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._ends = array("Q")
        try:
            with tempfile.TemporaryFile(buffering=WRITE_BYTES) as file:
                end = 0
                for row in rows:
                    end += file.write(_to_line(row))
                    self._ends.append(end)
                file.flush()
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise TaskError(
                "cannot write the task's rows to a temporary file",
                cause=str(error),
                fix="free some space, or set TMPDIR to a folder that has it",
            ) from None
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Row:
        end = self._ends[index]
        start = self._ends[index - 1] if index else 0
        prompt, answer, tests, metadata, messages = json.loads(os.pread(self._file, end - start, start))
        return Row(prompt, answer, read_tests(tests) if tests else None, metadata, tuple(messages))


def _to_line(row: Row) -> bytes:
    tests = row.tests.to_json() if row.tests else None
    values = [row.prompt, row.answer, tests, dict(row.metadata), row.messages]
    return json.dumps(values, separators=(",", ":")).encode()


class TaskThread:
    """Runs calls on one thread, one at a time and in order: generators are not made for concurrency.

    It is a daemon thread: at exit the interpreter waits for an executor's threads, so a generator that hangs would keep
    the process alive for ever.
    """

    def __init__(self) -> None:
        self._calls: Queue[Callable[[], None] | None] = Queue(WAITING_MAX)
        threading.Thread(target=self._run, name="task", daemon=True).start()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises. A call that is cancelled before its turn is skipped.

        Raises:
            queue.Full: WAITING_MAX calls wait already.
        """
        future: Future[T] = Future()
        self._calls.put_nowait(lambda: _settle(future, work))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let the thread end after the calls that wait, without waiting for it."""
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
