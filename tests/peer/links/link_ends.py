"""Record what a link delivers, for tests of links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from peer.links.transport import Link
from rollcast.wire.links.frames import ChunkFrame, LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb


class End:
    """One end of a link: the frames that arrived, and whether it is closed.

    Args:
        next_chunk: called on ``drained``; sends one, or does not.
    """

    def __init__(self, link: Link, next_chunk: Callable[[Link], None] = lambda _link: None) -> None:
        self.link = link
        self.came: list[LinkFrame] = []
        self.batches = 0
        self.drained_times = 0
        self.over: tuple[str, str] | None = None
        self._next_chunk = next_chunk
        self._changed = asyncio.Event()
        self._calling = False

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        assert frames
        assert self.over is None
        self.came += frames
        self.batches += 1
        self._changed.set()

    def drained(self) -> None:
        assert self.over is None
        assert not self._calling, "called from within send_chunk"
        self.drained_times += 1
        self._calling = True
        self._next_chunk(self.link)
        self._calling = False
        self._changed.set()

    def closed(self, reason: str, code: str) -> None:
        assert self.over is None, "closed twice"
        self.over = (reason, code)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def message(self) -> pb.LinkMessage:
        frame = await self.frame()
        assert isinstance(frame, LinkMessageFrame)
        return frame.message

    async def chunk(self) -> ChunkFrame:
        frame = await self.frame()
        assert isinstance(frame, ChunkFrame)
        return frame

    async def frame(self) -> LinkFrame:
        await self.until(lambda: self.came)
        return self.came.pop(0)

    async def ended(self) -> tuple[str, str]:
        await self.until(lambda: self.over)
        assert self.over is not None
        return self.over
