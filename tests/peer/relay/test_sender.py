from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from peer.links.gate import NetworkGate
from peer.links.neighbours import EncodingKey
from peer.relay.core.actions import SendAnnouncement, SendChunk, SendChunkList, SendWant
from peer.relay.core.events import ChunkSent, LinkId
from peer.relay.sender import RelaySending
from rollcast.wire.ids import ChunkIndex, EncodingId, StripeId, Version
from rollcast.wire.proto import rollcast_pb2 as pb

KEY = EncodingKey(Version(1), EncodingId(0))
LINK, GONE = LinkId(1), LinkId(2)


class World:
    def __init__(self, in_memory: bytes | None, on_disk: bytes | None = None) -> None:
        self.posted: list[str | None] = []
        self.chunks: list[bytes] = []
        self.events: list[ChunkSent] = []
        self.waiting: list[Coroutine[None, None, None]] = []

        async def read(*_: object) -> bytes | None:
            return on_disk

        def post(message: pb.LinkMessage) -> None:
            self.posted.append(message.WhichOneof("body"))

        link = SimpleNamespace(
            link=SimpleNamespace(send=post),
            send_chunk=lambda _key, _index, payload, _stripe: self.chunks.append(payload),
        )
        versions = SimpleNamespace(
            chunk=lambda _key, _index: in_memory,
            announcement=lambda version: pb.VersionAnnouncement() if version == 1 else None,
            chunk_list=lambda _key: b"h" * 32,
            worker=SimpleNamespace(read=read),
        )
        self.sending = RelaySending(
            cast(Any, {LINK: link}), cast(Any, versions), sent=self.events.append, spawn=self.waiting.append
        )

    async def chunk(self, link: LinkId = LINK) -> None:
        self.sending.send(SendChunk(link, KEY, ChunkIndex(0), StripeId(1)))
        for work in self.waiting:
            await work


async def test_chunks_come_from_memory_or_from_the_disk() -> None:
    for world in (World(b"x"), World(None, b"x")):
        await world.chunk()
        assert (world.chunks, world.events) == ([b"x"], [])


async def test_a_chunk_that_cannot_be_sent_counts_as_sent() -> None:
    lost, stopped = World(None, None), World(b"x")
    stopped.sending.gate = NetworkGate(send=False)
    for world in (lost, stopped):
        await world.chunk()
        assert (world.chunks, world.events) == ([], [ChunkSent(LINK)])


async def test_messages_go_to_links_that_are_there() -> None:
    world = World(b"x")
    for link in (LINK, GONE):
        world.sending.send(SendWant(link, KEY, chunk_list=True))
        world.sending.send(SendAnnouncement(link, Version(1)))
        world.sending.send(SendAnnouncement(link, Version(2)))
        world.sending.send(SendChunkList(link, KEY))
    await world.chunk(GONE)
    assert world.posted == ["want", "announcement", "chunk_list"]
    assert not world.chunks
