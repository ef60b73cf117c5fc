from __future__ import annotations

import pytest

from learner.push import Held, Push, PushFailed, SendChunk, SendMessage
from rollcast.wire.chunks import bitmap_add, chunk_list, new_bitmap
from rollcast.wire.identity import Identity
from rollcast.wire.ids import ChunkIndex, Epoch, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.records import (
    TensorSpec,
    VersionRecord,
    keyframe_manifest,
    parse_announcement,
    sign_version,
    state_hash,
)

STATE = bytes(range(256)) * 40  # 10 chunks of 1 KiB
HASHES = chunk_list(STATE, 1024)


@pytest.fixture(scope="module")
def announcement() -> pb.VersionAnnouncement:
    tensors = (TensorSpec("weights", "uint8", (len(STATE),), 0, len(STATE)),)
    record = VersionRecord(RunId("run"), Epoch(0), Version(3), b"", state_hash(STATE), len(STATE), tensors, "{}")
    return sign_version(record, [keyframe_manifest(record, HASHES, 1024)], Identity.generate())


@pytest.fixture
def push(announcement: pb.VersionAnnouncement) -> Push:
    return Push(announcement, parse_announcement(announcement).keyframe, HASHES)


def want(version: int = 3, encoding_id: int = 0) -> pb.LinkMessage:
    return pb.LinkMessage(want=pb.Want(version=version, encoding_id=encoding_id))


def credit(chunks: int, version: int = 3) -> pb.LinkMessage:
    return pb.LinkMessage(credit=pb.Credit(version=version, chunks=chunks))


def chunks(*indices: int) -> list[SendChunk]:
    return [SendChunk(ChunkIndex(index)) for index in indices]


def test_announce_list_chunks_on_credit_held(push: Push, announcement: pb.VersionAnnouncement) -> None:
    assert push.start() == [SendMessage(pb.LinkMessage(announcement=announcement))]
    listed = pb.LinkMessage(chunk_list=pb.ChunkList(version=3, hashes=HASHES))
    assert push.receive(want()) == [SendMessage(listed)]
    assert push.receive(credit(3)) == chunks(0, 1, 2)
    assert push.receive(credit(1)) == chunks(3)
    assert push.receive(credit(100)) == chunks(4, 5, 6, 7, 8, 9)
    assert push.receive(credit(1)) == []
    assert push.receive(pb.LinkMessage(held=pb.VersionHeld(version=3))) == [Held()]


def test_what_the_origin_has_is_not_sent_again(push: Push) -> None:
    bitmap = new_bitmap(10)
    for index in (0, 1, 4, 9):
        bitmap_add(bitmap, index)
    push.receive(pb.LinkMessage(have=pb.Have(version=3, chunk_count=10, bitmap=bytes(bitmap))))
    push.receive(want())
    assert push.receive(credit(100)) == chunks(2, 3, 5, 6, 7, 8)


def test_a_complete_copy_needs_no_chunk(push: Push) -> None:
    push.receive(pb.LinkMessage(have=pb.Have(version=3, chunk_count=10, complete=True)))
    push.receive(want())
    assert push.receive(credit(5)) == []


def test_credit_before_the_list_was_asked_for_is_kept(push: Push) -> None:
    assert push.receive(credit(2)) == []
    assert push.receive(want())[1:] == chunks(0, 1)


@pytest.mark.parametrize(
    "message",
    [
        want(version=2),
        want(encoding_id=1),
        credit(5, version=4),
        pb.LinkMessage(held=pb.VersionHeld(version=2)),
        pb.LinkMessage(cancel=pb.Cancel(version=2)),
        pb.LinkMessage(hello=pb.LinkHello()),
    ],
)
def test_messages_about_something_else_change_nothing(push: Push, message: pb.LinkMessage) -> None:
    assert push.receive(message) == []
    assert push.receive(credit(1)) == []


def test_a_list_of_another_length_is_not_believed(push: Push) -> None:
    push.receive(pb.LinkMessage(have=pb.Have(version=3, chunk_count=8, bitmap=b"\xff")))
    push.receive(want())
    assert push.receive(credit(1)) == chunks(0)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (pb.LinkMessage(cancel=pb.Cancel(version=3, reason="disk full")), "disk full"),
        (pb.LinkMessage(error=pb.LinkError(code="RC302", what="who are you")), "who are you"),
    ],
)
def test_giving_up_is_passed_on(push: Push, message: pb.LinkMessage, word: str) -> None:
    (failed,) = push.receive(message)
    assert isinstance(failed, PushFailed)
    assert word in failed.reason
