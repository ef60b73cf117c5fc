from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.links.frames import (
    ChunkFrame,
    FrameParser,
    LinkFrame,
    LinkMessageFrame,
    encode_chunk,
    encode_error,
    encode_message,
)
from rollcast.wire.proto import rollcast_pb2 as pb

versions = st.integers(0, limits.COUNTER_MAX)
words = st.integers(0, 2**32 - 1)
messages = st.one_of(
    st.builds(lambda text: pb.LinkMessage(hello=pb.LinkHello(run_id=text)), st.text(max_size=50)),
    st.builds(lambda v, e: pb.LinkMessage(want=pb.Want(version=v, encoding_id=e)), versions, words),
    st.builds(lambda v, n: pb.LinkMessage(credit=pb.Credit(version=v, indices=[n])), versions, st.integers(1, 1000)),
    st.builds(
        lambda v, n: pb.LinkMessage(chunk_list=pb.ChunkList(version=v, hashes=bytes(32 * n))),
        versions,
        st.integers(1, 9),
    ),
    st.builds(
        lambda v, n: pb.LinkMessage(have=pb.Have(version=v, chunk_count=n, bitmap=bytes((n + 7) // 8))),
        versions,
        st.integers(1, 99),
    ),
    st.builds(lambda v: pb.LinkMessage(held=pb.VersionHeld(version=v)), versions),
    st.builds(lambda t: pb.LinkMessage(error=pb.LinkError(what=t)), st.text(max_size=50)),
)
chunks = st.tuples(versions, words, words, st.binary(min_size=1, max_size=300))
frames = st.lists(messages | chunks, max_size=8)


def encoded(frame: pb.LinkMessage | tuple[int, int, int, bytes]) -> bytes:
    return encode_message(frame) if isinstance(frame, pb.LinkMessage) else b"".join(encode_chunk(*frame))


def plain(frame: LinkFrame) -> pb.LinkMessage | tuple[int, int, int, bytes]:
    if isinstance(frame, ChunkFrame):
        return frame.version, frame.encoding_id, frame.index, bytes(frame.payload)
    return frame.message


@given(frames, st.data())
@settings(deadline=None, max_examples=100)
def test_any_split_gives_the_same_frames(
    sent: list[pb.LinkMessage | tuple[int, int, int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(map(encoded, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    parser = FrameParser()
    received: list[LinkFrame] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += parser.feed(stream[start:stop])
    assert list(map(plain, received)) == sent
    assert parser.buffered_bytes == 0


@given(frames)
@settings(deadline=None, max_examples=20)
def test_byte_by_byte(sent: list[pb.LinkMessage | tuple[int, int, int, bytes]]) -> None:
    parser = FrameParser()
    received = [frame for byte in b"".join(map(encoded, sent)) for frame in parser.feed(bytes([byte]))]
    assert list(map(plain, received)) == sent


@given(st.lists(st.binary(max_size=400), max_size=8))
@settings(deadline=None, max_examples=100)
def test_garbage_is_refused_or_waited_for(pieces: list[bytes]) -> None:
    parser = FrameParser()
    try:
        for piece in pieces:
            parser.feed(piece)
            assert parser.buffered_bytes <= 18 + limits.CHUNK_SIZE_BYTES_MAX
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            parser.buffer()


@given(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=200))
@settings(deadline=None, max_examples=100)
def test_garbage_bodies_are_refused_or_within_limits(kind: int, body: bytes) -> None:
    try:
        received = FrameParser().feed(struct.pack(">BI", kind, len(body)) + body)
    except MalformedMessage:
        return
    (frame,) = received
    assert isinstance(frame, LinkMessageFrame) == (kind == 1)


@pytest.mark.parametrize(
    "header",
    [
        struct.pack(">BI", 0, 1),
        struct.pack(">BI", 3, 1),
        struct.pack(">BI", 1, 0),
        struct.pack(">BI", 1, limits.LINK_CONTROL_BYTES_MAX + 1),
        struct.pack(">BI", 2, 18),
        struct.pack(">BI", 2, 18 + limits.CHUNK_SIZE_BYTES_MAX + 1),
        b"GET /",
        b"\xff" * 5,
    ],
)
def test_impossible_headers_are_refused_before_the_body(header: bytes) -> None:
    with pytest.raises(MalformedMessage):
        FrameParser().feed(header)


def test_a_claimed_length_costs_little_memory() -> None:
    parser = FrameParser()
    parser.feed(struct.pack(">BI", 1, limits.LINK_CONTROL_BYTES_MAX) + b"x")
    assert parser.buffered_bytes == 64 << 10
    parser.feed(bytes(64 << 10))
    assert parser.buffered_bytes == 128 << 10


def test_a_chunk_is_received_where_it_stays() -> None:
    stream = b"".join(encode_chunk(1, 0, 2, b"payload"))
    parser = FrameParser()
    assert parser.missing_bytes == 0
    parser.buffer()[:5] = stream[:5]
    assert parser.filled(5) is None
    assert parser.missing_bytes == len(parser.buffer()) == len(stream) - 5
    body = parser.buffer()
    body[:] = stream[5:]
    frame = parser.filled(len(body))
    assert isinstance(frame, ChunkFrame)
    assert parser.missing_bytes == 0
    body[18] = ord("P")
    assert frame.payload == b"Payload", "no copy"
    assert frame.payload.readonly


def test_the_largest_chunk_passes() -> None:
    payload = bytes(limits.CHUNK_SIZE_BYTES_MAX)
    (frame,) = FrameParser().feed(b"".join(encode_chunk(1, 0, 2, payload)))
    assert isinstance(frame, ChunkFrame)
    assert frame.payload == payload
    for wrong in (b"", payload + b"x"):
        with pytest.raises(MalformedMessage):
            encode_chunk(1, 0, 2, wrong)


def test_payloads_may_be_kept() -> None:
    parser = FrameParser()
    stream = bytearray(b"".join(encode_chunk(1, 0, 0, b"first")))
    (first,) = parser.feed(stream)
    stream[:] = bytes(len(stream))
    parser.feed(b"".join(encode_chunk(1, 0, 1, b"second")))
    assert isinstance(first, ChunkFrame)
    assert first.payload == b"first"


def test_the_longest_chunk_list_passes() -> None:
    hashes = bytes(limits.CHUNK_COUNT_MAX * 32)
    (frame,) = FrameParser().feed(encode_message(pb.LinkMessage(chunk_list=pb.ChunkList(hashes=hashes))))
    assert isinstance(frame, LinkMessageFrame)
    assert frame.message.chunk_list.hashes == hashes


LONG = "x" * (limits.TEXT_LENGTH_MAX + 1)


@pytest.mark.parametrize(
    "message",
    [
        pb.LinkMessage(hello=pb.LinkHello(run_id=LONG)),
        pb.LinkMessage(hello=pb.LinkHello(software=LONG)),
        pb.LinkMessage(have=pb.Have(chunk_count=8, bitmap=b"\0\0")),
        pb.LinkMessage(have=pb.Have(chunk_count=7, bitmap=b"\1")),
        pb.LinkMessage(have=pb.Have(chunk_count=2**32 - 1, bitmap=b"\0")),
        pb.LinkMessage(have=pb.Have(version=2**63)),
        pb.LinkMessage(chunk_list=pb.ChunkList(hashes=b"x" * 33)),
        pb.LinkMessage(chunk_list=pb.ChunkList()),
        pb.LinkMessage(chunk_list=pb.ChunkList(hashes=bytes(limits.CHUNK_COUNT_MAX * 32 + 32))),
        pb.LinkMessage(credit=pb.Credit()),
        pb.LinkMessage(credit=pb.Credit(indices=range(limits.CREDIT_CHUNKS_MAX + 1))),
        pb.LinkMessage(got=pb.Got()),
        pb.LinkMessage(got=pb.Got(indices=range(limits.CREDIT_CHUNKS_MAX + 1))),
        pb.LinkMessage(decline=pb.Decline()),
        pb.LinkMessage(decline=pb.Decline(indices=range(limits.REQUEST_CHUNKS_MAX + 1))),
        pb.LinkMessage(request=pb.Request()),
        pb.LinkMessage(request=pb.Request(indices=range(limits.REQUEST_CHUNKS_MAX + 1))),
        pb.LinkMessage(padding=pb.Padding(zeros=bytes(limits.PADDING_BYTES_MAX + 1))),
        pb.LinkMessage(want=pb.Want(version=2**64 - 1)),
        pb.LinkMessage(cancel=pb.Cancel(reason=LONG)),
        pb.LinkMessage(error=pb.LinkError(code=LONG)),
        pb.LinkMessage(held=pb.VersionHeld(epoch=2**63)),
    ],
)
def test_messages_past_a_limit_are_refused(message: pb.LinkMessage) -> None:
    with pytest.raises(MalformedMessage):
        FrameParser().feed(encode_message(message))


@pytest.mark.parametrize("before", [b"", b"\x1a\x00", b"\x1a\x80\x80\x80\x80\x00", b"\x1a"])
def test_a_long_message_is_of_a_kind_that_may_be_long(before: bytes) -> None:
    empty_records = b"\x0a\x00" * (1 << 17)
    length = len(empty_records)
    body = before + b"\x62" + bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + empty_records
    with pytest.raises(MalformedMessage):
        FrameParser().feed(struct.pack(">BI", 1, len(body)) + body)


def test_a_long_announcement_passes() -> None:
    record = pb.Signed(payload=bytes(limits.LINK_SHORT_BYTES_MAX))
    message = pb.LinkMessage(announcement=pb.VersionAnnouncement(record=record))
    assert FrameParser().feed(encode_message(message)) == [LinkMessageFrame(message)]


def test_an_empty_message_is_not_sent() -> None:
    with pytest.raises(MalformedMessage):
        encode_message(pb.LinkMessage())


def test_the_reason_of_an_end_is_cut_to_the_accepted_length() -> None:
    (frame,) = FrameParser().feed(encode_error(LONG, "RC207"))
    assert isinstance(frame, LinkMessageFrame)
    assert frame.message.error == pb.LinkError(code="RC207", what=LONG[: limits.TEXT_LENGTH_MAX])
