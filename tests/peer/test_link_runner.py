from __future__ import annotations

import asyncio

from peer.link_runner import OUTBOX_MESSAGES_MOST, LinkRunner, OutgoingChunk
from peer.relay_events import EncodingKey, LinkId
from peer.transport import LinkClosed
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.chunks import BytesLike
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, Version
from rollcast.wire.link import LinkFrame
from rollcast.wire.proto import rollcast_pb2 as pb

KEY = EncodingKey(Version(3), EncodingId(0))
WANT = pb.LinkMessage(want=pb.Want(version=3))


class FakeLink:
    """Keeps what is sent; receives what the test puts in."""

    peer_id = PeerId("other")
    role = "peer"
    dialled = True
    bytes_sent = 0
    bytes_received = 0

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.incoming: asyncio.Queue[LinkFrame | Exception] = asyncio.Queue()

    async def send(self, message: pb.LinkMessage) -> None:
        self.sent.append(message)

    async def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike) -> None:
        self.sent.append((version, encoding_id, index, bytes(payload)))

    async def receive(self) -> LinkFrame:
        item = await self.incoming.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def close(self) -> None:
        return


class Setup:
    def __init__(self) -> None:
        self.link = FakeLink()
        self.sizes: list[int] = []
        self.done = asyncio.Event()
        self.runner = LinkRunner(
            LinkId(1), self.link, read_chunk=self._read, on_frame=lambda *_: None, on_chunk_sent=self._sent
        )

    async def _read(self, key: EncodingKey, index: ChunkIndex) -> bytes | None:
        return b"xy" if index == 0 else None

    def _sent(self, _runner: LinkRunner, size_bytes: int) -> None:
        self.sizes.append(size_bytes)
        if len(self.sizes) == 2:
            self.runner.end("enough")


async def test_messages_and_chunks_leave_in_order_and_a_lost_chunk_holds_nobody_up() -> None:
    setup = Setup()
    setup.runner.post(WANT)
    setup.runner.post(OutgoingChunk(KEY, ChunkIndex(1)))
    setup.runner.post(OutgoingChunk(KEY, ChunkIndex(0)))
    async with asyncio.timeout(5.0):
        assert await setup.runner.run() == "enough"
    assert setup.link.sent == [WANT, (3, 0, 0, b"xy")]
    assert setup.sizes == [0, 2]
    assert setup.runner.ended_by_us


async def test_a_closed_link_is_not_our_doing() -> None:
    setup = Setup()
    setup.link.incoming.put_nowait(LinkClosed("gone"))
    assert await setup.runner.run() == "gone"
    assert not setup.runner.ended_by_us


async def test_nonsense_ends_the_link_with_its_code() -> None:
    setup = Setup()
    setup.link.incoming.put_nowait(MalformedMessage("nonsense"))
    assert await setup.runner.run() == "nonsense"
    assert setup.runner.ended_by_us
    assert setup.runner.code == MalformedMessage.code


async def test_a_reader_that_lets_messages_pile_up_loses_the_link() -> None:
    setup = Setup()
    for _ in range(OUTBOX_MESSAGES_MOST + 1):
        setup.runner.post(WANT)
    assert await setup.runner.run() == "too many messages wait to be taken"
