"""Test the noise connection below yamux, with a fake connection in the place of the socket."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("libp2p")

import trio
import trio.testing
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.connection.exceptions import RawConnError
from libp2p.stream_muxer.yamux.yamux import TYPE_DATA, TYPE_PING, YAMUX_HEADER_FORMAT

from peer.p2p.streams.noise import NoiseConnection

LANE = 3


def frame(body: bytes, stream_id: int = LANE, *, kind: int = TYPE_DATA, flags: int = 0) -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream_id, len(body)) + body


class Session:
    """A stand-in for libp2p's session whose cipher changes nothing, so that the test controls where messages end.

    Args:
        pieces: as they come from the network.
        early: read during the negotiation, and not used by it.
    """

    is_initiator = True

    def __init__(self, pieces: list[bytes], early: bytes = b"") -> None:
        self.conn: Any = self
        self.read_writer = self
        self.read_write_closer = self
        self.written: list[bytes] = []
        self.enciphered: list[bytes] = []
        self.closed = False
        self._pieces = list(pieces)
        self._early = early

    def _drain(self, _count: None) -> bytes:
        return self._early

    def encrypt(self, data: bytes) -> bytes:
        self.enciphered.append(data)
        return data

    def decrypt(self, data: bytes) -> bytes:
        return data

    async def read(self, size_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._pieces:
            return b""
        piece, self._pieces[0] = self._pieces[0][:size_bytes], self._pieces[0][size_bytes:]
        if not self._pieces[0]:
            del self._pieces[0]
        return piece

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def close(self) -> None:
        self.closed = True

    def get_remote_address(self) -> tuple[str, int]:
        return ("5.5.5.5", 5)


class Lane:
    def __init__(self) -> None:
        self.came = b""
        self.rests: list[int] = []
        self.is_clear = True

    def clear(self) -> bool:
        return self.is_clear

    def take(self, data: memoryview) -> None:
        self.came += data

    def rest(self) -> None:
        self.rests.append(len(self.came))


def messages(data: bytes, sizes: list[int]) -> bytes:
    """Cut the data into noise messages of these sizes, in a cycle."""
    out, number = b"", 0
    while data:
        size = sizes[number % len(sizes)]
        out += struct.pack(">H", len(data[:size])) + data[:size]
        data, number = data[size:], number + 1
    return out


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(
    bodies=st.lists(st.binary(max_size=60), max_size=8),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    network=st.integers(1, 90),
    early=st.integers(0, 30),
)
def test_data_of_a_lane_arrives_whole_and_all_else_goes_to_yamux(
    bodies: list[bytes], sizes: list[int], network: int, early: int
) -> None:
    lane, seen = Lane(), []
    stream = b"".join(frame(body) + frame(b"", 0, kind=TYPE_PING, flags=1) for body in bodies)
    session = Session(cut(messages(stream[early:], sizes), network), stream[:early])

    async def read() -> None:
        secured = NoiseConnection(session)
        secured.divert(LANE, lane)
        with contextlib.suppress(IncompleteReadError):
            while True:
                seen.append(await secured.read(12))

    trio.run(read)
    assert lane.came == b"".join(bodies)
    assert seen == [frame(b"", 0, kind=TYPE_PING, flags=1)] * len(bodies)
    assert lane.rests[-1:] == ([len(lane.came)] if lane.came else []), "it hears once there is no more"


def test_nothing_overtakes_what_yamux_still_holds() -> None:
    async def read() -> None:
        lane = Lane()
        secured = NoiseConnection(
            Session([messages(frame(b"first") + frame(b"second") + frame(b"third", flags=4), [1000])])
        )
        secured.divert(LANE, lane)
        lane.is_clear = False
        assert await secured.read(12) == frame(b"first")[:12]
        assert await secured.exactly(5) == b"first"
        lane.is_clear = True
        assert await secured.read(12) == frame(b"third", flags=4)[:12], "whatever has a flag is yamux's"
        assert lane.came == b"second"
        secured.forget(LANE)

    trio.run(read)


def test_an_end_within_a_message_is_an_error() -> None:
    async def read() -> None:
        with pytest.raises(IncompleteReadError) as clean:
            await NoiseConnection(Session([])).read(12)
        assert clean.value.is_clean_close
        with pytest.raises(IncompleteReadError) as broken:
            await NoiseConnection(Session([b"\0"])).read(12)
        assert not broken.value.is_clean_close

    trio.run(read)


def test_what_is_written_is_one_message() -> None:
    async def write() -> None:
        session = Session([])
        secured = NoiseConnection(session)
        await secured.write(b"abc")
        assert session.written == [b"\0\3abc"]
        assert secured.get_remote_address() == ("5.5.5.5", 5)
        await secured.close()
        assert session.closed

    trio.run(write)


def test_a_write_that_is_cancelled_before_it_begins_costs_no_message() -> None:
    async def write() -> None:
        session = Session([])
        secured = NoiseConnection(session)
        with trio.CancelScope() as scope:
            scope.cancel()
            await secured.write(b"never")
        await secured.write(b"abc")
        assert session.enciphered == [b"abc"], "the other end counts them"

    trio.run(write)


def test_a_message_that_left_in_part_ends_the_connection() -> None:
    async def write() -> None:
        ours, theirs = trio.socket.socketpair()
        secured = NoiseConnection(Session([]))
        secured._socket = trio.SocketStream(ours)
        with trio.move_on_after(0.05) as given_up:
            while True:
                await secured.write(bytes(60_000))
        assert given_up.cancelled_caught
        assert ours.fileno() == -1
        theirs.close()

    trio.run(write)


def test_a_broken_socket_is_an_error_that_libp2p_knows() -> None:
    async def read() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        secured = NoiseConnection(Session([]))
        secured._socket = ours  # type: ignore[assignment]
        await theirs.aclose()
        with pytest.raises(IncompleteReadError):
            await secured.read(12)
        await ours.aclose()
        await secured.write(b"x")  # while it is closed here: nothing

        class Broken:
            async def receive_some(self, _size_bytes: int) -> bytes:
                raise trio.BrokenResourceError("reset")

        secured._socket = Broken()  # type: ignore[assignment]
        with pytest.raises(RawConnError, match="reset"):
            await secured.read(12)

    trio.run(read)
