from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.relay.core.chunk_set import ChunkSet
from peer.relay.stats import heat_map


@pytest.mark.parametrize(
    ("chunks", "held", "cells", "drawn"),
    [
        (8, range(8), 4, [255, 255, 255, 255]),
        (8, [0, 1, 2, 7], 4, [255, 127, 0, 127]),
        (3, [1], 128, [0, 255, 0]),
        (10, [9], 3, [0, 0, 63]),  # runs of 3, 3 and 4 chunks
        (1000, [0], 1, [1]),
        (1000, range(999), 1, [254]),
    ],
)
def test_a_cell_is_the_share_of_its_chunks(chunks: int, held: list[int], cells: int, drawn: list[int]) -> None:
    assert list(heat_map(ChunkSet(chunks, held).bitmap, chunks, cells)) == drawn


def test_nothing_to_receive_is_no_map() -> None:
    assert heat_map(b"", 0) == b""


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 1999)), st.integers(1, 2000), st.integers(1, 200))
def test_only_what_is_held_is_full_and_only_what_is_missing_is_empty(held: set[int], chunks: int, cells: int) -> None:
    held = {index for index in held if index < chunks}
    drawn = heat_map(ChunkSet(chunks, held).bitmap, chunks, cells)
    assert len(drawn) == min(cells, chunks)
    bounds = [cell * chunks // len(drawn) for cell in range(len(drawn) + 1)]
    for cell, share in enumerate(drawn):
        run = set(range(bounds[cell], bounds[cell + 1]))
        assert (share == 255, share == 0) == (run <= held, not run & held)
