from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.training.packing import share_rows


def test_long_sequences_come_first_and_short_ones_fill_up() -> None:
    assert share_rows([2, 7, 3, 6, 1], 10) == [[1, 2], [3, 0, 4]]
    assert share_rows([], 10) == []
    with pytest.raises(ValueError, match="11 tokens does not fit into a row of 10"):
        share_rows([11], 10)


@given(st.lists(st.integers(1, 64), max_size=60))
@settings(deadline=None, max_examples=50)
def test_every_sequence_has_one_place_and_no_row_overflows(lengths: list[int]) -> None:
    rows = share_rows(lengths, 64)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= 64 for row in rows)
    assert 9 * len(rows) <= 11 * max(1, -(-sum(lengths) // 64) * 2) + 6
