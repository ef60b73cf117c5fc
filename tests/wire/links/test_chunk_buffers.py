from __future__ import annotations

from rollcast.wire.links.chunk_buffers import ChunkBuffers

SIZE = 32 << 10


def test_a_buffer_is_taken_again_only_when_no_view_of_it_is_left() -> None:
    buffers = ChunkBuffers(kept_bytes_most=2 * SIZE)
    first = buffers.take(SIZE)
    identity = id(first)
    part = memoryview(first)[18:].toreadonly()[5:9]
    del first
    second = buffers.take(SIZE)
    assert id(second) != identity, "a slice of a view of the first one is left"
    del part
    assert id(buffers.take(SIZE)) == identity


def test_the_memory_that_is_kept_is_bounded() -> None:
    buffers = ChunkBuffers(kept_bytes_most=2 * SIZE)
    held = [buffers.take(SIZE) for _ in range(5)]
    kept = {id(one) for one in held[:2]}
    del held[:]
    assert {id(buffers.take(SIZE)) for _ in range(5)} <= kept


def test_another_size_is_served_and_a_short_last_chunk_keeps_the_others() -> None:
    buffers = ChunkBuffers()
    identity = id(buffers.take(4 * SIZE))
    assert len(buffers.take(SIZE)) == SIZE
    assert len(buffers.take(100)) == 100
    assert id(buffers.take(4 * SIZE)) == identity
    assert len(buffers.take(8 * SIZE)) == 8 * SIZE
