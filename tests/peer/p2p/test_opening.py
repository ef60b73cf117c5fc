from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.p2p.opening import (
    FIRST_GRANT_BYTES,
    GRANT_BYTES,
    OPENING_BYTES,
    TOKEN_BYTES,
    LaneName,
    encode_grant,
    encode_opening,
    parse_grant,
    parse_opening,
)
from rollcast.runtime.errors import MalformedMessage

TOKEN = bytes(range(TOKEN_BYTES))


@pytest.mark.parametrize("lane", ["up", "down"])
def test_an_opening_says_lane_and_token(lane: LaneName) -> None:
    assert parse_opening(encode_opening(lane, TOKEN)) == (lane, TOKEN)


@given(st.binary(max_size=2 * OPENING_BYTES))
def test_anything_else_is_refused(data: bytes) -> None:
    if len(data) == OPENING_BYTES and data[0] < 2:
        assert encode_opening(*parse_opening(data)) == data
    else:
        with pytest.raises(MalformedMessage):
            parse_opening(data)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=8))
def test_grants_only_grow(values: list[int]) -> None:
    data = b"".join(map(encode_grant, values))
    assert len(data) == GRANT_BYTES * len(values)
    grown = [FIRST_GRANT_BYTES, *values]
    if grown == sorted(grown):
        assert parse_grant(data, FIRST_GRANT_BYTES) == grown[-1]
    else:
        with pytest.raises(MalformedMessage):
            parse_grant(data, FIRST_GRANT_BYTES)
