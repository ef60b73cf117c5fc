"""The traps of libp2p's yamux, each sprung on purpose; more of them in test_host.py, through whole hosts."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("libp2p")

import trio
import trio.testing
from libp2p.io.exceptions import IncompleteReadError
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_PING, TYPE_WINDOW_UPDATE, YAMUX_HEADER_FORMAT

from peer.p2p.yamux import BoundedYamux


class Connection:
    """Frames that come, and a writer that never gets through."""

    is_initiator = False

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.closed = False

    async def read(self, n: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise IncompleteReadError("closed", 1, 0)
        if not self.frames:
            await trio.sleep_forever()
        return self.frames.pop(0)

    async def write(self, data: bytes) -> None:
        await trio.sleep_forever()

    async def close(self) -> None:
        self.closed = True


def after(frames: list[bytes]) -> tuple[int, bool]:
    """How many frames were left, and whether the connection was closed."""
    connection = Connection(frames)

    async def main() -> None:
        muxed = BoundedYamux(connection, None, is_initiator=False)
        with trio.move_on_after(5.0):
            await muxed.start()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return len(connection.frames), connection.closed


def frame(kind: int, stream_id: int = 0) -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, FLAG_SYN, stream_id, 0)


def test_the_reader_does_not_wait_for_its_answers_to_leave() -> None:
    assert after([frame(TYPE_PING)] * 20) == (0, False)


def test_who_takes_no_answers_is_cut() -> None:
    left, closed = after([frame(TYPE_PING)] * 3000)
    assert left > 1500
    assert closed


def test_who_opens_too_many_streams_is_cut() -> None:
    async def take_all(frames: list[bytes]) -> None:
        muxed = BoundedYamux(connection, None, is_initiator=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(muxed.start)
            with trio.move_on_after(5.0):
                while True:
                    await muxed.new_stream_receive_channel.receive()
            nursery.cancel_scope.cancel()

    frames = [frame(TYPE_WINDOW_UPDATE, 2 * number + 1) for number in range(400)]
    connection = Connection(frames)
    with pytest.RaisesGroup(trio.EndOfChannel) if hasattr(pytest, "RaisesGroup") else pytest.raises(BaseExceptionGroup):
        trio.run(take_all, frames, clock=trio.testing.MockClock(autojump_threshold=0))
    assert connection.closed
    assert len(frames) > 100
