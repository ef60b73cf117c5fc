"""Test frames: any frames pass however the bytes are cut, and nothing else does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.engines.vllm.server.frames import BODY_BYTES_MAX, HEADER_BYTES_MAX, BadFrame, Frame, FrameReader, encode

HEADERS = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9), max_size=2)
FRAMES = st.lists(st.builds(Frame, HEADERS, st.binary(max_size=20)), max_size=4)


@settings(max_examples=50)
@given(FRAMES, st.lists(st.integers(1, 30), max_size=8))
def test_frames_are_read_as_they_were_written_however_the_bytes_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    data, reader, read = b"".join(map(encode, frames)), FrameReader(), []
    for size in [*cuts, len(data)]:
        read += reader.receive(data[:size])
        data = data[size:]
    assert read == frames


@given(st.binary(max_size=60))
def test_other_bytes_give_frames_or_a_bad_frame_and_no_other_error(data: bytes) -> None:
    try:
        frames = FrameReader().receive(data)
    except BadFrame:
        return
    assert sum(len(encode(frame)) for frame in frames) <= 2 * len(data) + 8 * len(frames)


@pytest.mark.parametrize("lengths", [(HEADER_BYTES_MAX + 1, 0), (2, BODY_BYTES_MAX + 1)])
def test_a_frame_that_is_too_large_is_refused_before_it_arrives(lengths: tuple[int, int]) -> None:
    with pytest.raises(BadFrame, match="a frame of"):
        FrameReader().receive(struct.pack(">II", *lengths))


def test_a_frame_that_the_other_end_would_refuse_is_not_sent() -> None:
    with pytest.raises(BadFrame, match="a frame of"):
        encode(Frame({"text": "x" * HEADER_BYTES_MAX}))


@pytest.mark.parametrize("text", [b"[]", b"{", b"1", b"\xff"])
def test_a_header_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(BadFrame, match="header"):
        FrameReader().receive(struct.pack(">II", len(text), 0) + text)
