from __future__ import annotations

import pytest

from learner.publishing.push import Held, Push, PushFailed, SendChunk, SendMessage
from rollcast.wire.ids import ChunkIndex, EncodingId, Version
from rollcast.wire.proto import rollcast_pb2 as pb

ANNOUNCEMENT = pb.VersionAnnouncement()
KEYFRAME, DELTA, BASE = bytes(32 * 10), bytes(32 * 3), bytes(32 * 20)


@pytest.fixture
def push() -> Push:
    keyframe, delta, base = (Version(3), EncodingId(0)), (Version(3), EncodingId(2)), (Version(1), EncodingId(0))
    return Push(ANNOUNCEMENT, Version(3), {keyframe: KEYFRAME, delta: DELTA, base: BASE})


def want(version: int = 3, encoding_id: int = 0, *, chunk_list: bool = True) -> pb.LinkMessage:
    return pb.LinkMessage(want=pb.Want(version=version, encoding_id=encoding_id, chunk_list=chunk_list))


def request(*indices: int, version: int = 3, encoding_id: int = 0) -> pb.LinkMessage:
    return pb.LinkMessage(request=pb.Request(version=version, encoding_id=encoding_id, indices=indices))


def have(encoding_id: int, count: int) -> SendMessage:
    body = pb.Have(version=3, encoding_id=encoding_id, chunk_count=count, complete=True)
    return SendMessage(pb.LinkMessage(have=body))


def test_a_push_from_announcement_to_held(push: Push) -> None:
    assert push.start() == [SendMessage(pb.LinkMessage(announcement=ANNOUNCEMENT))]
    listed = pb.LinkMessage(chunk_list=pb.ChunkList(version=3, hashes=KEYFRAME))
    assert push.receive(want()) == [SendMessage(listed), have(0, 10)]
    assert push.receive(request(7, 2)) == [
        SendChunk(Version(3), EncodingId(0), ChunkIndex(7)),
        SendChunk(Version(3), EncodingId(0), ChunkIndex(2)),
    ]
    assert push.receive(pb.LinkMessage(held=pb.VersionHeld(version=3))) == [Held()]


def test_every_encoding_is_served(push: Push) -> None:
    assert push.receive(want(encoding_id=2, chunk_list=False)) == [have(2, 3)]
    assert push.receive(request(1, encoding_id=2)) == [SendChunk(Version(3), EncodingId(2), ChunkIndex(1))]


def test_the_base_is_served_and_does_not_end_the_push(push: Push) -> None:
    answer = pb.Have(version=1, encoding_id=0, chunk_count=20, complete=True)
    assert push.receive(want(version=1, chunk_list=False)) == [SendMessage(pb.LinkMessage(have=answer))]
    assert push.receive(request(19, version=1)) == [SendChunk(Version(1), EncodingId(0), ChunkIndex(19))]
    assert push.receive(request(20, version=1)) == [PushFailed("the origin requests chunk 20 of 20")]
    assert push.receive(pb.LinkMessage(held=pb.VersionHeld(version=1))) == []


@pytest.mark.parametrize(
    "message",
    [
        want(version=2),
        want(encoding_id=1),
        request(0, version=4),
        request(0, encoding_id=1),
        pb.LinkMessage(held=pb.VersionHeld(version=2)),
        pb.LinkMessage(cancel=pb.Cancel(version=2)),
        pb.LinkMessage(credit=pb.Credit(version=3)),
        pb.LinkMessage(hello=pb.LinkHello()),
    ],
)
def test_messages_about_something_else_change_nothing(push: Push, message: pb.LinkMessage) -> None:
    assert push.receive(message) == []


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (pb.LinkMessage(cancel=pb.Cancel(version=3, reason="disk full")), "disk full"),
        (pb.LinkMessage(error=pb.LinkError(code="RC302", what="who are you")), "who are you"),
        (request(0, 10), "chunk 10 of 10"),
    ],
)
def test_the_origins_refusal_is_reported(push: Push, message: pb.LinkMessage, word: str) -> None:
    (failed,) = push.receive(message)
    assert isinstance(failed, PushFailed)
    assert word in failed.reason
