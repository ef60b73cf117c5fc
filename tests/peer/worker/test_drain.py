"""Test why a worker pauses, and how it completes the work that it holds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from peer.worker.core.events import Event, FinishRequested, StopRequested
from peer.worker.core.pause_reasons import Halt
from peer.worker.drain import end, finish


class Part:
    """A worker, session and relay that record the calls to them."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.closed: list[str] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def handle(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, StopRequested) and not self.ended.done():
            self.ended.set_result(event.reason)

    async def close(self, reason: str = "relay") -> None:
        self.closed.append(reason)

    def parts(self) -> dict[str, asyncio.Task[Any]]:
        async def ended() -> str:
            return await self.ended

        async def forever() -> None:
            await asyncio.Event().wait()

        return {"worker": asyncio.create_task(ended()), "session": asyncio.create_task(forever())}


async def test_running_rollouts_are_waited_for_within_the_time() -> None:
    part = Part()
    parts = part.parts()
    asyncio.get_running_loop().call_later(0.05, part.ended.set_result, "done")
    begun_s = time.monotonic()
    await finish(part, parts, "a signal", 10.0)
    assert time.monotonic() - begun_s < 5.0
    assert part.told == [FinishRequested("a signal")]
    slow = Part()
    await finish(slow, slow.parts(), "a signal", 0.05)
    assert not slow.ended.done()


async def test_other_leases_are_returned_and_everything_is_closed() -> None:
    part = Part()
    await end("enough", part.parts(), worker=part, session=part, relay=part)
    assert part.told == [StopRequested("enough")]
    assert part.closed == ["enough", "relay"]


def test_a_worker_starts_without_a_reason_to_pause() -> None:
    halt = Halt()
    assert halt.may_generate
    assert halt.takes_work
    assert halt.in_words == ""
    assert halt.status(unfinished=3, unsent=1) is None


def test_the_gravest_reason_counts() -> None:
    halt = Halt(finishing="its owner asked it to finish")
    assert halt.may_generate
    assert not halt.takes_work
    assert halt.status(unfinished=3, unsent=1) == ("finishing", "its owner asked it to finish; 3 rollouts left")
    halt.rest("hot", "resting", 5.0)
    assert (halt.may_generate, halt.in_words) == (False, "resting: hot")
    assert halt.stop("told to", 6.0)
    assert not halt.stop("told again", 7.0)
    assert (halt.since_s, halt.in_words) == (6.0, "stopping: told to")
    assert halt.status(unfinished=3, unsent=1) == ("draining", "told to; 1 finished rollouts to upload")


def test_another_reason_to_rest_does_not_begin_the_wait_anew() -> None:
    halt = Halt()
    halt.rest("hot", "resting", 5.0)
    halt.rest("paused by its owner", "paused", 6.0)
    assert (halt.since_s, halt.in_words) == (5.0, "paused: paused by its owner")
    halt.rest("", "resting", 7.0)
    assert halt.may_generate
