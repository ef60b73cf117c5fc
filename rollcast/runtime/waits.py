"""Bound waits in time, with errors that name what was waited for; compute retry delays with full jitter; end tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from rollcast.runtime.errors import WaitTimedOut

Result = TypeVar("Result")


_SLICES = 8  # of a deadline: time in which the event loop did not run counts for at most one of them


class Deadline:
    """Cancels its body after seconds in which the event loop ran.

    On a busy machine a process may not run for seconds, and with it neither a body that waits nor what would end its
    wait. So the time is counted in slices, each of which counts only for its own length, however late the loop was.
    """

    __slots__ = ("_fix", "_left", "_loop", "_scope", "_slice_s", "_timer", "_waiting_for")

    def __init__(self, seconds: float, waiting_for: str, fix: str) -> None:
        self._slice_s, self._waiting_for, self._fix = seconds / _SLICES, waiting_for, fix
        self._left = _SLICES
        self._scope = asyncio.timeout(None)

    def restart(self) -> None:
        """Give the body its seconds again."""
        self._left = _SLICES

    async def __aenter__(self) -> Deadline:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._slice_s, self._slice_over)
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            waited = f"waited {_SLICES * self._slice_s:g} s for {self._waiting_for}"
            raise WaitTimedOut(waited, fix=self._fix) from None

    def _slice_over(self) -> None:
        self._left -= 1
        if self._left > 0:
            self._timer = self._loop.call_later(self._slice_s, self._slice_over)
        else:
            self._scope.reschedule(self._loop.time())


def deadline(seconds: float, waiting_for: str, *, fix: str = "") -> Deadline:
    """Cancel the body of ``async with`` after ``seconds`` in which this event loop ran.

    Raises:
        WaitTimedOut: the body took longer; the message names ``waiting_for``.
    """
    return Deadline(seconds, waiting_for, fix)


async def result_or_released(future: asyncio.Future[Result], release: Callable[[Result], None]) -> Result:
    """Return the future's result; if the caller is cancelled just when it arrives, release the result instead.

    Raises:
        BaseException: the exception of the future.
    """
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled() and future.exception() is None:
            release(future.result())
        raise


def backoff_delays_s(random: Random, *, first_s: float = 0.1, most_s: float = 10.0) -> Iterator[float]:
    """Yield endless retry delays in seconds: uniform up to a ceiling that doubles each time (full jitter).

    Full jitter spreads the retries of many peers that lost the same process at the same moment.
    """
    ceiling_s = first_s
    while True:
        yield random.uniform(0.0, ceiling_s)
        ceiling_s = min(most_s, ceiling_s * 2.0)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended. What they raise is not raised here."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
