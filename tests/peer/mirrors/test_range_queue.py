from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.links.neighbours import EncodingKey
from peer.mirrors.range_queue import ChunkCutter, ChunkRange, RangeQueue
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions.records import parse_announcement
from tests.peer.versions import CHUNK_SIZE_BYTES, announcement_of, version_record

MANIFEST = parse_announcement(announcement_of(1)).keyframe
OLD, NEW = EncodingKey(Version(1), EncodingId(0)), EncodingKey(Version(2), EncodingId(0))
COUNT = MANIFEST.chunk_count  # 11, the last one short


def queue_of(chunks_per_range: int) -> RangeQueue:
    return RangeQueue(chunks_per_range * CHUNK_SIZE_BYTES)


def test_adjacent_chunks_become_one_range_of_bounded_size() -> None:
    queue = queue_of(3)
    queue.add(OLD, MANIFEST, [7, 3, 4, 5, 6, 10, 9])
    size = CHUNK_SIZE_BYTES
    assert queue.take() == ChunkRange(OLD, 3, 5, 3 * size, 6 * size)
    assert queue.take() == ChunkRange(OLD, 6, 7, 6 * size, 8 * size)
    assert queue.take() == ChunkRange(OLD, 9, 10, 9 * size, MANIFEST.size_bytes)
    assert queue.take() is None


def test_a_chunk_longer_than_a_range_is_a_range_of_its_own() -> None:
    queue = RangeQueue(1)
    queue.add(OLD, MANIFEST, [1, 2])
    assert (part := queue.take()) is not None
    assert (part.first, part.last) == (1, 1)


def test_the_newest_version_goes_first() -> None:
    queue = queue_of(2)
    queue.add(OLD, MANIFEST, [0])
    queue.add(NEW, MANIFEST, [5])
    assert [part.key for part in (queue.take(), queue.take()) if part] == [NEW, OLD]


def test_a_chunk_requested_twice_is_read_once() -> None:
    queue = queue_of(4)
    queue.add(OLD, MANIFEST, [0, 1])
    queue.add(OLD, MANIFEST, [1, 0])
    part = queue.take()
    assert part is not None
    queue.add(OLD, MANIFEST, [0])
    assert queue.take() is None
    assert [queue.arrived(OLD, 0), queue.arrived(OLD, 0)] == [True, False]
    queue.add(OLD, MANIFEST, [0])
    assert queue.take() is not None, "it may be asked for again once it arrived"


def test_chunks_that_could_not_be_read_are_queued_again() -> None:
    queue = queue_of(4)
    queue.add(OLD, MANIFEST, [0, 1, 2])
    part = queue.take()
    assert part is not None
    assert queue.arrived(OLD, 0)
    queue.put_back(part)
    assert len(queue) == 2
    assert (again := queue.take()) is not None
    assert (again.first, again.last) == (1, 2)


def test_cancelled_requests_are_neither_read_nor_delivered() -> None:
    queue = queue_of(4)
    queue.add(OLD, MANIFEST, [0, 1, 2, 8])
    part = queue.take()
    assert part is not None
    assert queue.is_asked(part)
    queue.drop(OLD)
    assert not queue.is_asked(part)
    assert not queue.arrived(OLD, 1)
    queue.put_back(part)
    assert queue.take() is None


@given(st.lists(st.integers(1, 3000)), st.integers(0, COUNT - 1), st.integers(0, COUNT - 1))
@settings(deadline=None, max_examples=40)
def test_the_bytes_of_a_range_become_its_chunks_however_they_come(steps: list[int], one: int, other: int) -> None:
    _, state = version_record(1)
    first, last = min(one, other), max(one, other)
    start, stop = MANIFEST.chunk_range(first)[0], MANIFEST.chunk_range(last)[1]
    cutter = ChunkCutter(ChunkRange(OLD, first, last, start, stop), MANIFEST)
    chunks = []
    for step in [*steps, stop - start]:
        chunks += cutter.feed(state[start : min(start + step, stop)])
        start = min(start + step, stop)
    assert cutter.done
    assert cutter.feed(b"more") == []
    assert [index for index, _ in chunks] == list(range(first, last + 1))
    assert all(bytes(payload) == state[slice(*MANIFEST.chunk_range(index))] for index, payload in chunks)
