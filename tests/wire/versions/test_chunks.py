"""Test chunks of a version, and hashes of its prefixes."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import CorruptChunk, MalformedMessage
from rollcast.wire.limits import CHUNK_COUNT_MAX, STATE_BYTES_MAX
from rollcast.wire.versions.chunks import (
    bitmap_add,
    bitmap_count,
    bitmap_has,
    blake3_hash,
    check_chunk,
    chunk_count,
    chunk_list,
    chunk_size_for,
    cut,
    new_bitmap,
    parse_bitmap,
)


@given(st.integers(0, 5000), st.integers(1, 600))
@settings(deadline=None, max_examples=100)
def test_chunks_cover_everything_once(size_bytes: int, chunk_size_bytes: int) -> None:
    ranges = list(cut(size_bytes, chunk_size_bytes))
    assert len(ranges) == chunk_count(size_bytes, chunk_size_bytes)
    assert [at for start, stop in ranges for at in range(start, stop)] == list(range(size_bytes))
    assert all(stop - start == chunk_size_bytes for start, stop in ranges[:-1])


@pytest.mark.parametrize(
    ("size_bytes", "kib"),
    [
        *((1, 8), (2 << 20, 8), ((4 << 20) - (16 << 10), 8), (4 << 20, 16), ((8 << 20) - (32 << 10), 16)),
        *((8 << 20, 32), (32 << 20, 32), (128 << 20, 32)),
        *(((128 << 20) + 1, 64), (256 << 20, 64), (1 << 30, 256), (8 << 30, 1024), (STATE_BYTES_MAX, 1024)),
    ],
)
def test_chunks_are_fine_but_not_too_many(size_bytes: int, kib: int) -> None:
    assert chunk_size_for(size_bytes) == kib << 10
    assert chunk_count(size_bytes, kib << 10) <= CHUNK_COUNT_MAX


def test_the_list_is_one_hash_a_chunk() -> None:
    data = bytes(range(256)) * 10
    hashes = chunk_list(data, 1000)
    assert hashes == b"".join(blake3(data[at : at + 1000]).digest() for at in (0, 1000, 2000))
    assert chunk_list(memoryview(data), 1000) == hashes
    for index in range(3):
        check_chunk(hashes, index, data[index * 1000 : (index + 1) * 1000])


@pytest.mark.parametrize(("index", "data"), [(0, b"a"), (1, b"ab"), (2, b""), (-1, b"cd"), (-2, b"ab"), (2**40, b"")])
def test_other_bytes_are_not_the_chunk(index: int, data: bytes) -> None:
    with pytest.raises(CorruptChunk):
        check_chunk(chunk_list(b"abcd", 2), index, data)


def test_large_data_hash_the_same_on_many_cores() -> None:
    data = bytes(3 << 20)
    assert blake3_hash(data) == blake3(data).digest()


@given(st.integers(1, 200), st.data())
@settings(deadline=None, max_examples=100)
def test_bitmaps_survive_the_wire(count: int, data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, count - 1)))
    bitmap = new_bitmap(count)
    for index in indices:
        bitmap_add(bitmap, index)
    received = parse_bitmap(bytes(bitmap), count)
    assert {index for index in range(count) if bitmap_has(received, index)} == indices
    assert bitmap_count(received) == len(indices)


def test_chunk_0_is_the_most_significant_bit() -> None:
    bitmap = new_bitmap(9)
    bitmap_add(bitmap, 0)
    bitmap_add(bitmap, 8)
    assert bytes(bitmap) == b"\x80\x80"


@pytest.mark.parametrize(
    ("bitmap", "count"), [(b"", 1), (b"\0\0", 8), (b"\x40", 1), (b"", 0), (b"\0", -1), (b"", 2**32)]
)
def test_bitmaps_that_do_not_fit_are_refused(bitmap: bytes, count: int) -> None:
    with pytest.raises(MalformedMessage):
        parse_bitmap(bitmap, count)
