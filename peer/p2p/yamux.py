"""libp2p's yamux with two of its traps taken out (trio).

Its reader answers pings and new streams itself and waits until the answer is written: with bulk in both directions
both readers can wait for writers that wait for the readers, for ever. Here the answers leave from a task of their own.
And it takes whatever a remote sends, whether granted or not: here a connection that holds too much ends.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import trio
from libp2p.network.connection.exceptions import RawConnError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID, Yamux

_ANSWERS_WAITING_MOST = 1024
_FRAME_BYTES_MOST = 1 << 20
STRANGER_BYTES_MOST = 1 << 20
MEMBER_BYTES_MOST = 40 << 20
"""Two lanes with what libp2p grants by itself (16 MiB each), and what circuits hold."""


class BoundedYamux(Yamux):  # type: ignore[misc]
    """One connection.

    ``held_bytes_most``: received and not taken, of all its streams together, before it ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held_bytes_most = STRANGER_BYTES_MOST
        self._reader: trio.lowlevel.Task | None = None
        self._answers: deque[bytes] = deque()
        self._answer_due = trio.Event()

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
        if length > _FRAME_BYTES_MOST or held_bytes + length > self.held_bytes_most:
            raise RawConnError("the other end sent more than it may")
        body: bytes = await super()._read_data_body(length)
        return body


class Muxers(MuxerMultistream):  # type: ignore[misc]
    """Negotiates the one muxer that a host of ours speaks; libp2p's own makes its own yamux whatever it is given."""

    def __init__(self, negotiate_timeout_s: float) -> None:
        super().__init__({PROTOCOL_ID: BoundedYamux}, negotiate_timeout_s)

    async def new_conn(self, conn: Any, peer_id: Any) -> BoundedYamux:
        """Of a connection whose other end has proved who it is."""
        await self.select_transport(conn)
        muxed = BoundedYamux(conn, peer_id, is_initiator=conn.is_initiator)
        self._annotate_connection(muxed, conn, PROTOCOL_ID)
        return muxed
