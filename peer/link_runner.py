"""One open link of the relay: a bounded outbox with the task that empties it, and the task that receives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from peer.relay_events import EncodingKey, LinkId
from peer.transport import Link, LinkClosed
from rollcast.runtime.errors import RollcastError
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.link import LinkFrame
from rollcast.wire.proto import rollcast_pb2 as pb

# Control messages that may wait for a slow reader; honest ones answer what it sent us.
OUTBOX_MESSAGES_MOST = 1024

ReadChunk = Callable[[EncodingKey, ChunkIndex], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True)
class OutgoingChunk:
    """A chunk to be read from the store when its turn comes."""

    key: EncodingKey
    index: ChunkIndex


class LinkRunner:
    """Runs one link until it ends.

    Args:
        read_chunk: bytes of a chunk, or None when the store no longer has it.
        on_frame: called with every frame received.
        on_chunk_sent: called when the transport took a chunk of this many bytes.
    """

    def __init__(
        self,
        link_id: LinkId,
        link: Link,
        *,
        read_chunk: ReadChunk,
        on_frame: Callable[[LinkRunner, LinkFrame], None],
        on_chunk_sent: Callable[[LinkRunner, int], None],
    ) -> None:
        self.link_id = link_id
        self.link = link
        self.code = ""  # of the error that made us end the link, for the other end
        self._read_chunk = read_chunk
        self._on_frame = on_frame
        self._on_chunk_sent = on_chunk_sent
        self._outbox: deque[pb.LinkMessage | OutgoingChunk] = deque()
        self._wake = asyncio.Event()
        self._ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def ended_by_us(self) -> bool:
        """Whether ``end`` was called: the other end has not heard why."""
        return self._ending.done()

    def post(self, item: pb.LinkMessage | OutgoingChunk) -> None:
        """Queue something to send. The core bounds chunks; a reader that lets messages pile up loses the link."""
        self._outbox.append(item)
        self._wake.set()
        if len(self._outbox) > OUTBOX_MESSAGES_MOST:
            self.end("too many messages wait to be taken")

    def end(self, reason: str, code: str = "") -> None:
        """Let ``run`` return; what was queued before is not sent."""
        if not self._ending.done():
            self.code = code
            self._ending.set_result(reason)

    async def run(self) -> str:
        """Send and receive until the link ends.

        Returns:
            Why it ended.
        """
        tasks = [asyncio.ensure_future(self._send_all()), asyncio.ensure_future(self._receive_all())]
        try:
            await asyncio.wait([*tasks, self._ending], return_when=asyncio.FIRST_COMPLETED)
            if self._ending.done():
                return self._ending.result()
            return next(task.result() for task in tasks if task.done())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_all(self) -> str:
        try:
            while True:
                self._on_frame(self, await self.link.receive())
        except LinkClosed as error:
            return str(error)
        except RollcastError as error:
            self.end(error.what, error.code)
            return error.what

    async def _send_all(self) -> str:
        try:
            while True:
                while self._outbox:
                    await self._send(self._outbox.popleft())
                self._wake.clear()
                await self._wake.wait()
        except LinkClosed as error:
            return str(error)

    async def _send(self, item: pb.LinkMessage | OutgoingChunk) -> None:
        if isinstance(item, pb.LinkMessage):
            await self.link.send(item)
            return
        payload = await self._read_chunk(item.key, item.index)
        if payload is not None:
            await self.link.send_chunk(item.key.version, item.key.encoding_id, item.index, payload)
        self._on_chunk_sent(self, len(payload or b""))
