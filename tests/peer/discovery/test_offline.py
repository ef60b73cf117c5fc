from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from peer.discovery.offline import OfflineWatch
from rollcast.wire.proto import rollcast_pb2 as pb

OFFLINE_AFTER_S = 0.05


class RelayRecorder:
    def __init__(self) -> None:
        self.said: asyncio.Queue[bool] = asyncio.Queue()

    def set_offline(self, offline: bool) -> None:
        self.said.put_nowait(offline)

    async def next(self) -> bool:
        async with asyncio.timeout(5.0):
            return await self.said.get()


@asynccontextmanager
async def running(relay: RelayRecorder) -> AsyncIterator[OfflineWatch]:
    part = OfflineWatch(relay, OFFLINE_AFTER_S)
    task = asyncio.create_task(part.run())
    try:
        yield part
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_relay_is_offline_after_a_while_without_a_session_until_the_next_one() -> None:
    relay = RelayRecorder()
    async with running(relay) as part:
        assert await relay.next()
        part.opened(pb.Welcome())
        assert not await relay.next()
        assert not part.offline
        part.lost()
        assert await relay.next()
        assert part.offline


async def test_a_short_interruption_does_not_switch_to_offline() -> None:
    relay = RelayRecorder()
    async with running(relay) as part:
        part.opened(pb.Welcome())
        for _ in range(3):
            part.lost()
            part.opened(pb.Welcome())
            await asyncio.sleep(0)
        await asyncio.sleep(3 * OFFLINE_AFTER_S)
        assert relay.said.empty()
