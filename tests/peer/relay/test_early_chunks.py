from __future__ import annotations

from peer.relay.chunk_memory import EarlyChunks
from peer.relay.core.events import LinkId
from rollcast.wire.ids import ChunkIndex, EncodingId, StripeId, Version
from rollcast.wire.links.frames import ChunkFrame
from tests.peer.relay.relay_steps import KEY, key_of

LINK = LinkId(1)


def frame(index: int, version: int = 1, size_bytes: int = 10) -> ChunkFrame:
    return ChunkFrame(
        Version(version), EncodingId(0), ChunkIndex(index), StripeId(1), memoryview(bytes(size_bytes)).toreadonly()
    )


def kept(chunks: EarlyChunks, version: int = 1) -> list[int]:
    return [one.index for _, one in chunks.take(key_of(version))]


def test_chunks_wait_for_their_list_in_order_and_are_taken_once() -> None:
    chunks = EarlyChunks()
    for index in (3, 1, 2):
        chunks.keep(LINK, frame(index), 0.0)
    chunks.keep(LinkId(2), frame(7, version=2), 0.0)
    assert chunks.take(KEY) == [(LINK, frame(3)), (LINK, frame(1)), (LINK, frame(2))]
    assert kept(chunks) == []
    assert kept(chunks, version=2) == [7]


def test_they_are_kept_briefly() -> None:
    chunks = EarlyChunks()
    chunks.keep(LINK, frame(0), 0.0)
    chunks.keep(LINK, frame(1), 4.0)
    chunks.keep(LINK, frame(2), 6.0)
    assert kept(chunks) == [1, 2]


def test_they_are_few_and_the_oldest_go() -> None:
    chunks = EarlyChunks()
    for index in range(10):
        chunks.keep(LINK, frame(index, size_bytes=1 << 20), 0.0)
    assert kept(chunks) == [6, 7, 8, 9]
    for index in range(10):
        chunks.keep(LINK, frame(index, size_bytes=1 << 20), 0.0)
    assert kept(chunks) == [6, 7, 8, 9], "what was taken does not count any more"
