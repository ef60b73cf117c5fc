"""libp2p's yamux with some of its traps taken out (trio).

Its reader answers pings and new streams itself and waits until the answer is written: with bulk in both directions
both readers can wait for writers that wait for the readers, for ever. Here the answers leave from a task of their own.
And it takes whatever a remote sends, whether granted or not: here a connection that holds too much ends.
Closed while it is cancelled, it leaves its socket open; over before it began, it leaves whoever opens it waiting.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import trio
from libp2p.network.connection.exceptions import RawConnError
from libp2p.stream_muxer.exceptions import MuxedStreamReset
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID, TYPE_DATA, YAMUX_HEADER_FORMAT, Yamux

from peer.p2p.streams.lanes import close_quietly
from peer.p2p.streams.noise import Secured
from rollcast.wire.versions.chunks import BytesLike

_ANSWERS_WAITING_MOST = 1024
_STREAMS_MOST = 256
_FRAME_BYTES_MOST = 1 << 20
# From a frame's header to its end, for frames that are not data of a lane.
_BODY_TIMEOUT_S = 60.0
_HEADER = struct.Struct(YAMUX_HEADER_FORMAT)
STRANGER_BYTES_MOST = 1 << 20
MEMBER_BYTES_MOST = 40 << 20
"""Two lanes with what libp2p grants by itself (16 MiB each), and what circuits hold."""


class BoundedYamux(Yamux):  # type: ignore[misc]
    """One connection.

    ``held_bytes_most``: received and not taken, of all its streams together, before it ends; of a stranger, received.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held_bytes_most = STRANGER_BYTES_MOST
        self._came_bytes = 0  # while it was a stranger's
        self._reader: trio.lowlevel.Task | None = None
        self._answers: deque[bytes] = deque()
        self._answer_due = trio.Event()

    async def start(self) -> None:
        """Run until the connection is over."""
        try:
            await super().start()
        finally:
            # Where the other end had closed already, libp2p never sets it, and whoever dialled waits for it.
            self.event_started.set()
            await self._close_socket()

    async def close(self, *args: Any) -> None:
        """Say that it is over, where that can be said in the time that the caller has, and close the socket."""
        try:
            await super().close(*args)
        finally:
            await self._close_socket()

    async def _cleanup_on_error(self) -> None:
        try:
            await super()._cleanup_on_error()
        finally:
            await self._close_socket()

    async def _close_socket(self) -> None:
        await close_quietly(self.secured_conn.close)
        self.event_closed.set()

    async def handle_incoming(self) -> None:
        """Read for ever; never wait for a write."""
        assert self._nursery is not None
        self._reader = trio.lowlevel.current_task()
        self._nursery.start_soon(self._answer)
        await super().handle_incoming()

    async def _write_frame(self, data: bytes) -> None:
        if trio.lowlevel.current_task() is not self._reader:
            await super()._write_frame(data)
            return
        if len(self._answers) >= _ANSWERS_WAITING_MOST:
            raise RawConnError("the other end asks for answers and takes none")
        if len(self.streams) > _STREAMS_MOST:
            raise RawConnError("the other end opens too many streams")
        self._answers.append(data)
        self._answer_due.set()

    async def _answer(self) -> None:
        while True:
            while self._answers:
                try:
                    await super()._write_frame(self._answers.popleft())
                except Exception:  # the connection is over, as its reader finds by itself
                    return
            self._answer_due = trio.Event()
            await self._answer_due.wait()

    async def _read_data_body(self, length: int) -> bytes:
        held_bytes = sum(map(len, self.stream_buffers.values()))
        if self.held_bytes_most <= STRANGER_BYTES_MOST:
            held_bytes = self._came_bytes  # libp2p's negotiation takes a message of any size, and holds it
            self._came_bytes += length
        if length > _FRAME_BYTES_MOST or held_bytes + length > self.held_bytes_most:
            raise RawConnError("the other end sent more than it may")
        with trio.fail_after(_BODY_TIMEOUT_S):
            body: bytes = await self.secured_conn.exactly(length)
        return body

    def _sweep_stale_streams(self, now: float | None = None) -> int:
        """Every half minute. libp2p's keeps for ever what was closed here after the other end had reset it."""
        for stream_id, stream in self.streams.items():
            if stream.reset_received:
                stream.closed = True
                self.stream_buffers.get(stream_id, bytearray()).clear()
        swept: int = super()._sweep_stale_streams(now)
        return swept

    async def send_data(self, stream: Any, parts: Sequence[BytesLike]) -> None:
        """Send one frame of data for which the stream's window has room.

        Raises:
            MuxedStreamReset: the stream or the connection is over.
        """
        if stream.closed or stream.send_closed or self.event_shutting_down.is_set():
            raise MuxedStreamReset("the stream is closed")
        size_bytes = sum(map(len, parts))
        stream.send_window -= size_bytes
        header = _HEADER.pack(0, TYPE_DATA, 0, stream.stream_id, size_bytes)
        try:
            self._write_lock.acquire_nowait()  # an await would yield to the scheduler even where nobody holds it
        except trio.WouldBlock:
            await self._write_lock.acquire()
        try:
            await self.secured_conn.write(b"".join((header, *parts)))
        finally:
            self._write_lock.release()


class Muxers(MuxerMultistream):  # type: ignore[misc]
    """Negotiates the one muxer that a host of ours speaks; libp2p's own makes its own yamux whatever it is given."""

    def __init__(self, negotiate_timeout_s: float) -> None:
        super().__init__({PROTOCOL_ID: BoundedYamux}, negotiate_timeout_s)

    async def new_conn(self, conn: Any, peer_id: Any) -> BoundedYamux:
        """Of a connection whose other end has proved who it is."""
        await self.select_transport(conn)
        muxed = BoundedYamux(Secured(conn), peer_id, is_initiator=conn.is_initiator)
        self._annotate_connection(muxed, conn, PROTOCOL_ID)
        return muxed
