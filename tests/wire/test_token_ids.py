"""Test token ids as bytes: what is packed is read back, whole or in part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.wire.token_ids import (
    ID_BYTES,
    holds_any,
    id_array,
    id_count,
    largest_id,
    last_id,
    pack_ids,
    unpack_ids,
)

ids = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(ids)
def test_ids_are_read_back(tokens: list[int]) -> None:
    packed = pack_ids(tokens)
    assert unpack_ids(packed) == tuple(tokens)
    assert id_array(packed).tolist() == tokens
    assert id_count(packed) == len(tokens)
    assert largest_id(packed) == max(tokens, default=-1)


@given(ids, ids)
def test_bytes_are_joined_and_cut_as_ids_are(first: list[int], second: list[int]) -> None:
    packed = pack_ids(first) + pack_ids(second)
    assert packed == pack_ids(first + second)
    assert packed[: ID_BYTES * len(first)] == pack_ids(first)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.frozensets(st.integers(0, 9), max_size=3))
def test_wanted_ids_are_found(tokens: list[int], wanted: frozenset[int]) -> None:
    packed = pack_ids(tokens)
    assert holds_any(packed, wanted) == bool(wanted & {*tokens})
    assert last_id(packed) == tokens[-1]


@pytest.mark.parametrize("last", [7, 0])
def test_bytes_across_two_ids_are_no_id(last: int) -> None:
    for pairs in (5, 500):
        across = [1, 256] * pairs  # 1 0 0 0 0 1 0 0: the bytes of 0 lie across each pair
        assert holds_any(pack_ids([*across, last]), {0}) == (last == 0)
        assert not holds_any(pack_ids(across), {0})


def test_the_bytes_are_little_endian() -> None:
    assert pack_ids((1, 0x01020304)) == b"\1\0\0\0\4\3\2\1"


def test_numbers_that_fit_no_id_and_bytes_that_hold_no_ids_are_refused() -> None:
    for wrong in (-1, 2**32):
        with pytest.raises(OverflowError):
            pack_ids([wrong])
    with pytest.raises(ValueError, match="multiple"):
        unpack_ids(b"\1\2\3")


def test_an_id_that_spans_two_others_is_not_found() -> None:
    assert not holds_any(pack_ids((0x0100, 0, 7)), {1})
    assert holds_any(pack_ids((0x0100, 0, 1)), {1})
    assert not holds_any(pack_ids((1, 2)), {-1, 2**32})


def test_the_largest_of_many_ids_is_found() -> None:
    assert largest_id(pack_ids([*range(5000), 2**32 - 1, 7])) == 2**32 - 1
