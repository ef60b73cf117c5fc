"""Bound waits in time, with errors that name what was waited for, and compute retry delays with full jitter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

from rollcast.runtime.errors import WaitTimedOut

Result = TypeVar("Result")


_SLICES = 8  # of a deadline: time in which the event loop did not run counts for at most one of them


class _RunningTime:
    """Ends a timeout's scope after seconds in which the event loop ran.

    On a busy machine a process may not run for seconds, and with it neither a body that waits nor what would end its
    wait. So the time is counted in slices, each of which counts only for its own length, however late the loop was.
    """

    def __init__(self, scope: asyncio.Timeout, seconds: float) -> None:
        self._scope, self._slice_s, self._left = scope, seconds / _SLICES, _SLICES
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._slice_s, self._slice_over)

    def _slice_over(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._slice_s, self._slice_over)
        else:
            self._scope.reschedule(self._loop.time())

    def cancel(self) -> None:
        self._timer.cancel()


@asynccontextmanager
async def deadline(seconds: float, waiting_for: str, *, fix: str = "") -> AsyncIterator[None]:
    """Cancel the body after ``seconds`` in which this event loop ran.

    Raises:
        WaitTimedOut: the body took longer; the message names ``waiting_for``.
    """
    scope = asyncio.timeout(None)
    running = _RunningTime(scope, seconds)
    try:
        async with scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise WaitTimedOut(f"waited {seconds:g} s for {waiting_for}", fix=fix) from None
    finally:
        running.cancel()


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
