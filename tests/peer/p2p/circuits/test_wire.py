from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("libp2p")

import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage

from peer.p2p.circuits.book import Answer
from peer.p2p.circuits.wire import (
    MESSAGE_BYTES_MOST,
    answer_certificate,
    encoded,
    read_certificate,
    read_message,
    status_of,
    wire_status,
)
from rollcast.runtime.errors import MalformedMessage


class Stream:
    """A stream that returns its input in pieces of at most ``most`` bytes, and records what is written."""

    def __init__(self, came: bytes, most: int = 3) -> None:
        self.came, self.most, self.written = came, most, b""

    async def read(self, size_bytes: int) -> bytes:
        taken = self.came[: min(size_bytes, self.most)]
        self.came = self.came[len(taken) :]
        return taken

    async def write(self, data: bytes) -> None:
        self.written += data


def hop(came: bytes) -> HopMessage:
    return trio.run(read_message, Stream(came), HopMessage)


def test_a_message_is_read_and_nothing_after_it() -> None:
    message = HopMessage(type=HopMessage.STATUS, status=wire_status(Answer.NO_RESERVATION))
    message.peer.id = bytes(200)
    stream = Stream(encoded(message) + b"more")
    assert trio.run(read_message, stream, HopMessage) == message
    assert stream.came == b"more"
    assert status_of(message) is Answer.NO_RESERVATION


@pytest.mark.parametrize(
    "came",
    [
        b"",
        b"\x05ab",
        b"\xff\xff\xff\x01",
        b"\x80\x80\x80",
        (MESSAGE_BYTES_MOST + 1).to_bytes(2, "little"),
        b"\x02\xff\xff",
    ],
)
def test_a_message_that_is_too_long_or_broken_is_refused(came: bytes) -> None:
    with pytest.raises(MalformedMessage):
        hop(came)


@given(st.binary(max_size=300))
def test_nonsense_is_malformed_or_a_message(came: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        hop(came)


def test_an_unknown_answer_is_a_refusal() -> None:
    assert status_of(StopMessage()) is Answer.UNEXPECTED_MESSAGE


@given(st.binary(max_size=MESSAGE_BYTES_MOST))
def test_a_certificate_comes_whole(certificate: bytes) -> None:
    shown = Stream(len(certificate).to_bytes(2, "big") + certificate, most=1000)
    assert trio.run(read_certificate, shown) == certificate


def test_a_certificate_that_is_too_long_is_not_read() -> None:
    with pytest.raises(MalformedMessage):
        trio.run(read_certificate, Stream(b"\xff\xff" + bytes(65535)))


@pytest.mark.parametrize(("accepted", "said"), [(True, b"\x01"), (False, b"\x00")])
def test_the_answer_is_one_byte(accepted: bool, said: bytes) -> None:
    stream = Stream(b"")

    async def answer() -> None:
        await answer_certificate(stream, accepted=accepted)

    trio.run(answer)
    assert stream.written == said
