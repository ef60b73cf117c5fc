from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.p2p.streams.opening import OPENING_BYTES, TOKEN_BYTES, LaneName, encode_opening, parse_opening
from rollcast.runtime.errors import MalformedMessage

TOKEN = bytes(range(TOKEN_BYTES))


@pytest.mark.parametrize("lane", ["up", "down"])
def test_an_opening_has_lane_and_token(lane: LaneName) -> None:
    assert parse_opening(encode_opening(lane, TOKEN)) == (lane, TOKEN)


@given(st.binary(max_size=2 * OPENING_BYTES))
def test_anything_else_is_refused(data: bytes) -> None:
    if len(data) == OPENING_BYTES and data[0] < 2:
        assert encode_opening(*parse_opening(data)) == data
    else:
        with pytest.raises(MalformedMessage):
            parse_opening(data)
