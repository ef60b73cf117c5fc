"""Test chunks in memory, also those that come before their chunk list."""

from __future__ import annotations

from peer.relay.chunk_memory import ChunkMemory, EarlyChunks
from peer.relay.core.state.events import LinkId
from rollcast.wire.ids import ChunkIndex, EncodingId, StripeId, Version
from rollcast.wire.links.frames import ChunkFrame
from tests.peer.relay.relay_steps import KEY, key_of


def test_a_chunk_is_kept_until_newer_ones_need_its_memory() -> None:
    memory = ChunkMemory(kept_bytes_most=20, unstored_bytes_most=1000)
    for index in range(4):
        memory.keep(KEY, index, bytes([index]) * 10)
    assert [memory.get(KEY, index) for index in range(4)] == [bytes([index]) * 10 for index in range(4)]
    for index in range(4):
        memory.stored(KEY, [index])
    assert [memory.get(KEY, index) is not None for index in range(4)] == [False, False, True, True]
    assert memory.get(key_of(2), 3) is None


def test_removed_chunks_take_no_memory() -> None:
    memory = ChunkMemory(kept_bytes_most=20, unstored_bytes_most=1000)
    for key in (KEY, key_of(2)):
        memory.keep(key, 0, bytes(10))
        memory.stored(key, [0])
    memory.discard((KEY,))
    assert memory.get(KEY, 0) is None
    memory.keep(key_of(3), 0, bytes(10))
    memory.stored(key_of(3), [0])
    assert memory.get(key_of(2), 0) == memory.get(key_of(3), 0) == bytes(10)


def test_memory_is_full_until_half_of_the_waiting_chunks_is_stored() -> None:
    memory = ChunkMemory(kept_bytes_most=0, unstored_bytes_most=100)
    full = []
    for index in range(12):
        memory.keep(KEY, index, bytes(10))
        full.append(memory.full)
    assert full == [False] * 10 + [True] * 2
    for index in range(12):
        memory.stored(KEY, [index])
        full.append(memory.full)
    assert full[12:] == [True] * 6 + [False] * 6


def test_bytes_that_cannot_be_read_wait_for_the_disk_too() -> None:
    memory = ChunkMemory(kept_bytes_most=0, unstored_bytes_most=10)
    memory.count(11)
    assert memory.full
    memory.count(-11)
    assert not memory.full


def test_storing_an_unknown_chunk_does_nothing() -> None:
    memory = ChunkMemory(kept_bytes_most=100, unstored_bytes_most=10)
    memory.stored(KEY, [1])
    memory.keep(KEY, 1, bytes(11))
    memory.stored(KEY, [1])
    memory.stored(KEY, [1])
    assert not memory.full
    assert memory.get(KEY, 1) == bytes(11)


def test_a_chunk_that_comes_again_is_counted_once() -> None:
    """Check an encoding that was abandoned and received again before its first chunks were stored."""
    memory = ChunkMemory(kept_bytes_most=20, unstored_bytes_most=100)
    for _ in range(5):
        memory.keep(KEY, 1, bytes(30))
        assert not memory.full
    memory.stored(KEY, [1])
    for _ in range(5):
        memory.keep(KEY, 2, bytes(10))
        memory.stored(KEY, [2])
    memory.keep(KEY, 3, bytes(10))
    memory.stored(KEY, [3])
    assert memory.get(KEY, 2) is not None


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


def test_early_chunks_are_kept_briefly() -> None:
    chunks = EarlyChunks()
    chunks.keep(LINK, frame(0), 0.0)
    chunks.keep(LINK, frame(1), 4.0)
    chunks.keep(LINK, frame(2), 6.0)
    assert kept(chunks) == [1, 2]


def test_early_chunks_are_bounded_and_the_oldest_dropped() -> None:
    chunks = EarlyChunks()
    for index in range(10):
        chunks.keep(LINK, frame(index, size_bytes=1 << 20), 0.0)
    assert kept(chunks) == [6, 7, 8, 9]
    for index in range(10):
        chunks.keep(LINK, frame(index, size_bytes=1 << 20), 0.0)
    assert kept(chunks) == [6, 7, 8, 9], "what was taken does not count any more"
