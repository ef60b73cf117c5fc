"""libp2p's yamux with four of its faults corrected (trio).

- Its reader writes the answers to pings and new streams itself. With bulk data in both directions both readers can wait
  for ever for writers that wait for the readers. Here a task of its own writes the answers.
- It accepts whatever a remote sends, granted or not. Here a connection that holds too much is ended.
- If it is closed while being cancelled, it leaves its socket open.
- If the connection ends before it has started, it leaves the task that opens it waiting.
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
from peer.p2p.streams.noise import NoiseConnection
from rollcast.wire.versions.chunks import BytesLike

_ANSWERS_WAITING_MOST = 1024
_STREAMS_MOST = 256
_FRAME_BYTES_MOST = 1 << 20
# Seconds from a frame's header to its end, for frames that are not data of a lane.
_BODY_TIMEOUT_S = 60.0
_HEADER = struct.Struct(YAMUX_HEADER_FORMAT)
STRANGER_BYTES_MOST = 1 << 20
MEMBER_BYTES_MOST = 40 << 20
"""Room for two lanes with the window that libp2p opens by itself (16 MiB each), and for circuits."""


class BoundedYamux(Yamux):  # type: ignore[misc]
    """The muxer of one connection.

    ``held_bytes_most`` is the number of bytes, received and not taken on all its streams together, above which the
    connection is ended; for a stranger all received bytes count.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held_bytes_most = STRANGER_BYTES_MOST
        self._came_bytes = 0  # received while the connection was a stranger's
        self._reader: trio.lowlevel.Task | None = None
        self._answers: deque[bytes] = deque()
        self._answer_due = trio.Event()

    async def start(self) -> None:
        """Run until the connection has ended."""
        try:
            await super().start()
        finally:
            # libp2p does not set it if the other end had closed already, and the dialling task waits for it.
            self.event_started.set()
            await self._close_socket()

    async def close(self, *args: Any) -> None:
        """Announce the end to the other side if the caller's deadline allows, and close the socket in any case."""
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
        """Read until the connection ends, without ever waiting for a write."""
        assert self._nursery is not None
        self._reader = trio.lowlevel.current_task()
        self._nursery.start_soon(self._answer)
        await super().handle_incoming()

    async def _write_frame(self, data: bytes) -> None:
        if trio.lowlevel.current_task() is not self._reader:
            await super()._write_frame(data)
            return
        if len(self._answers) >= _ANSWERS_WAITING_MOST:
            raise RawConnError("the other end requests answers and reads none")
        if len(self.streams) > _STREAMS_MOST:
            raise RawConnError("the other end opens too many streams")
        self._answers.append(data)
        self._answer_due.set()

    async def _answer(self) -> None:
        while True:
            while self._answers:
                try:
                    await super()._write_frame(self._answers.popleft())
                except Exception:  # the connection has ended, which its reader notices too
                    return
            self._answer_due = trio.Event()
            await self._answer_due.wait()

    async def _read_data_body(self, length: int) -> bytes:
        held_bytes = sum(map(len, self.stream_buffers.values()))
        if self.held_bytes_most <= STRANGER_BYTES_MOST:
            held_bytes = self._came_bytes  # libp2p's negotiation accepts and holds a message of any size
            self._came_bytes += length
        if length > _FRAME_BYTES_MOST or held_bytes + length > self.held_bytes_most:
            raise RawConnError("the other end sent more than it may")
        with trio.fail_after(_BODY_TIMEOUT_S):
            body: bytes = await self.secured_conn.exactly(length)
        return body

    def _sweep_stale_streams(self, now: float | None = None) -> int:
        """Remove closed streams; libp2p calls this every half minute.

        Its own version keeps a stream for ever that was closed here after the other end had reset it.
        """
        for stream_id, stream in self.streams.items():
            if stream.reset_received:
                stream.closed = True
                self.stream_buffers.get(stream_id, bytearray()).clear()
        swept: int = super()._sweep_stale_streams(now)
        return swept

    async def send_data(self, stream: Any, parts: Sequence[BytesLike]) -> None:
        """Send one frame of data for which the stream's window has room.

        Raises:
            MuxedStreamReset: the stream or the connection has ended.
        """
        if stream.closed or stream.send_closed or self.event_shutting_down.is_set():
            raise MuxedStreamReset("the stream is closed")
        size_bytes = sum(map(len, parts))
        stream.send_window -= size_bytes
        header = _HEADER.pack(0, TYPE_DATA, 0, stream.stream_id, size_bytes)
        try:
            self._write_lock.acquire_nowait()  # an await would yield to the scheduler even if the lock is free
        except trio.WouldBlock:
            await self._write_lock.acquire()
        try:
            await self.secured_conn.write(b"".join((header, *parts)))
        finally:
            self._write_lock.release()


class YamuxNegotiation(MuxerMultistream):  # type: ignore[misc]
    """Negotiate BoundedYamux, the only muxer of this host; libp2p's class would always create its own Yamux."""

    def __init__(self, negotiate_timeout_s: float) -> None:
        super().__init__({PROTOCOL_ID: BoundedYamux}, negotiate_timeout_s)

    async def new_conn(self, conn: Any, peer_id: Any) -> BoundedYamux:
        """Return the muxer of a connection whose other end has proved its PeerId."""
        await self.select_transport(conn)
        muxed = BoundedYamux(NoiseConnection(conn), peer_id, is_initiator=conn.is_initiator)
        self._annotate_connection(muxed, conn, PROTOCOL_ID)
        return muxed
