"""Trigger each fault of libp2p's yamux that BoundedYamux corrects; test_host.py has more, with whole hosts."""

from __future__ import annotations

import contextlib
import struct

import pytest

pytest.importorskip("libp2p")

import trio
import trio.testing
from libp2p.io.exceptions import IncompleteReadError
from libp2p.stream_muxer.yamux.yamux import FLAG_RST, FLAG_SYN, TYPE_PING, TYPE_WINDOW_UPDATE, YAMUX_HEADER_FORMAT

from peer.p2p.streams.yamux import BoundedYamux


class Connection:
    """A connection with incoming frames whose writes never finish."""

    is_initiator = False

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.closed = False

    async def read(self, n: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise IncompleteReadError("closed", 1, 0)
        while not self.frames:  # noqa: ASYNC110 - a test adds some later
            await trio.sleep(0.1)
        return self.frames.pop(0)

    async def write(self, data: bytes) -> None:
        await trio.sleep_forever()

    async def close(self) -> None:
        self.closed = True


def after(frames: list[bytes]) -> tuple[int, bool]:
    """Return the number of unread frames, and whether the connection ended by itself within 5 s."""
    connection = Connection(frames)

    async def main() -> bool:
        muxed = BoundedYamux(connection, None, is_initiator=False)
        with trio.move_on_after(5.0) as going_on:
            await muxed.start()
        assert connection.closed, "whatever ends it"
        return not going_on.cancelled_caught

    was_cut = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return len(connection.frames), was_cut


def frame(kind: int, stream_id: int = 0) -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, FLAG_SYN, stream_id, 0)


def test_the_reader_does_not_wait_for_its_answers_to_leave() -> None:
    assert after([frame(TYPE_PING)] * 20) == (0, False)


def test_a_remote_that_reads_no_answers_is_cut() -> None:
    left, closed = after([frame(TYPE_PING)] * 3000)
    assert left > 1500
    assert closed


def test_a_stream_closed_after_its_reset_is_removed() -> None:
    reset = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_WINDOW_UPDATE, FLAG_RST, 1, 0)
    connection = Connection([frame(TYPE_WINDOW_UPDATE, 1)])

    async def main() -> int:
        muxed = BoundedYamux(connection, None, is_initiator=False)
        connection.write = nothing  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(muxed.start)
            stream = await muxed.new_stream_receive_channel.receive()
            muxed.stream_buffers[1] += b"nobody reads this"
            connection.frames.append(reset)
            await trio.sleep(1.0)
            await stream.close()
            assert len(muxed.streams) == 1
            await trio.sleep(31.0)
            left = len(muxed.streams)
            nursery.cancel_scope.cancel()
        return left

    async def nothing(data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == 0


def test_a_remote_that_opens_too_many_streams_is_cut() -> None:
    connection = Connection([frame(TYPE_WINDOW_UPDATE, 2 * number + 1) for number in range(400)])

    async def take_all() -> None:
        muxed = BoundedYamux(connection, None, is_initiator=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(muxed.start)
            with contextlib.suppress(trio.EndOfChannel), trio.fail_after(60.0):
                async for _ in muxed.new_stream_receive_channel:
                    pass
            nursery.cancel_scope.cancel()

    trio.run(take_all, clock=trio.testing.MockClock(autojump_threshold=0))
    assert connection.closed
    assert len(connection.frames) > 100


def test_a_close_that_is_cancelled_closes_the_socket() -> None:
    connection = Connection([])

    async def main() -> None:
        muxed = BoundedYamux(connection, None, is_initiator=False)
        with trio.move_on_after(1.0):
            await muxed.close()
        assert muxed.is_closed

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert connection.closed


def test_a_connection_that_ends_before_it_starts_leaves_no_task_waiting() -> None:
    class Over(Connection):
        async def read(self, n: int | None = None) -> bytes:
            raise IncompleteReadError("closed", 1, 0)

    async def main() -> None:
        muxed = BoundedYamux(Over([]), None, is_initiator=True)
        with trio.fail_after(60.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(muxed.start)
                await muxed.event_started.wait()
        assert muxed.is_closed

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
