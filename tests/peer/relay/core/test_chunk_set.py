from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.relay.core.chunk_set import ChunkSet

SIZES = st.integers(1, 70)


@settings(deadline=None, max_examples=50)
@given(size=SIZES, data=st.data())
def test_it_is_a_set_that_survives_the_wire(size: int, data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, size - 1)))
    chunks = ChunkSet(size, indices)
    assert set(chunks) == indices
    assert chunks.count == len(indices)
    assert chunks.complete == (len(indices) == size)
    again = ChunkSet.from_bitmap(size, chunks.bitmap)
    assert again is not None
    assert set(again) == indices
    assert again.count == len(indices)
    other = data.draw(st.sets(st.integers(0, size - 1)))
    assert chunks.covers(ChunkSet(size, other)) == (other <= indices)


@settings(deadline=None, max_examples=50)
@given(size=SIZES, bitmap=st.binary(max_size=12))
def test_hostile_bitmaps_never_name_chunks_beyond_the_last(size: int, bitmap: bytes) -> None:
    chunks = ChunkSet.from_bitmap(size, bitmap)
    assert chunks is None or (chunks.bitmap == bitmap and chunks.count == len(set(chunks)))


def test_bits_are_most_significant_first() -> None:
    assert ChunkSet(10, [0, 9]).bitmap == b"\x80\x40"
    assert ChunkSet.full(10).bitmap == b"\xff\xc0"


def test_an_index_counts_once_and_must_exist() -> None:
    chunks = ChunkSet(2)
    assert chunks.add(1)
    assert not chunks.add(1)
    assert -1 not in chunks
    for index in (-1, 2):
        with pytest.raises(IndexError):
            chunks.add(index)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 70])
def test_the_full_set_has_every_index_and_no_other(size: int) -> None:
    full = ChunkSet.full(size)
    assert full.complete
    assert full.bitmap == ChunkSet(size, range(size)).bitmap


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.data())
def test_bits_name_the_same_indices_as_sets(size: int, data: st.DataObject) -> None:
    here = data.draw(st.sets(st.integers(0, size - 1)))
    others = data.draw(st.sets(st.integers(0, size - 1)))
    below = data.draw(st.integers(0, size + 9))
    chunks = ChunkSet(size, here)
    assert chunks.bits_of(here) == chunks.as_int()
    assert chunks.first_of(chunks.bits_of(others), size) == sorted(others)
    start = data.draw(st.integers(0, size - 1))
    assert chunks.first_of(chunks.bits_of(others), size, start) == sorted(others, key=lambda one: (one < start, one))
    missing = [index for index in range(min(below, size)) if index not in here]
    assert chunks.first_of(chunks.missing_below(below), size) == missing
