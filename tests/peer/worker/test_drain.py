from __future__ import annotations

import asyncio
import time
from typing import Any

from peer.worker.drain import end, finish
from peer.worker.events import Event, FinishRequested, StopRequested


class Part:
    """A worker, session and relay that note what they are told."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.closed: list[str] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def tell(self, event: Event) -> None:
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


async def test_what_was_begun_is_waited_for_and_no_longer() -> None:
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


async def test_the_rest_is_handed_back_and_all_is_closed() -> None:
    part = Part()
    await end("enough", part.parts(), worker=part, session=part, relay=part)
    assert part.told == [StopRequested("enough")]
    assert part.closed == ["enough", "relay"]
