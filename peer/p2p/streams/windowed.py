"""A libp2p stream that is read ahead by a fixed amount, and whose writer waits for room for as long as it takes (trio).

libp2p's own stream grants as much again for every read, up to 16 MiB, and gives the connection up when its writer had
no room for 5 s.
"""

from __future__ import annotations

from typing import Any

import trio
from libp2p.stream_muxer.exceptions import MuxedStreamEOF

# yamux itself looks every 10 ms whether its window opened, and gives the connection up after 5 s: we look before it.
_WINDOW_LOOK_S = 0.005
_READ_BYTES = 256 << 10
# A noise message holds 65,519 bytes, and a yamux header takes 12 of them.
_PIECE_BYTES = 65_507


class WindowedStream:
    """Both directions of one stream; from now on nothing else reads or writes it.

    Args:
        window_bytes: the other end may send so much ahead of what was granted here.
    """

    def __init__(self, stream: Any, window_bytes: int) -> None:
        self._stream = stream
        self._muxed = stream.muxed_stream
        self._window_bytes = window_bytes
        self._due_bytes = 0

    async def open(self) -> None:
        """Open the window; libp2p has opened it a little already."""
        waiting_bytes = len(self._muxed.conn.stream_buffers.get(self._muxed.stream_id, b""))
        self._due_bytes = max(0, self._window_bytes - self._muxed.recv_window - waiting_bytes)
        await self._grant_due()

    async def receive(self) -> bytes:
        """What came, some of it at least; empty at the end. ``grant`` must follow."""
        try:
            data: bytes = await self._muxed.conn.read_stream(self._muxed.stream_id, _READ_BYTES)
        except MuxedStreamEOF:
            return b""
        return data

    async def grant(self, size_bytes: int) -> None:
        """So much may come in addition."""
        self._due_bytes += size_bytes
        if self._due_bytes >= self._window_bytes // 4:
            await self._grant_due()

    async def send(self, data: bytes) -> None:
        """Send it once there is room for it, or for some of it."""
        view = memoryview(data)
        while view:
            # yamux has no event for it, and looks every 10 ms itself.
            while self._muxed.send_window <= 0 and not self._muxed.closed:  # noqa: ASYNC110
                await trio.sleep(_WINDOW_LOOK_S)
            size_bytes = min(len(view), _PIECE_BYTES, max(1, self._muxed.send_window))
            await self._stream.write(bytes(view[:size_bytes]))
            view = view[size_bytes:]

    async def reset(self) -> None:
        """End it both ways. What came and nobody takes is dropped: libp2p would keep it for a minute more."""
        held = self._muxed.conn.stream_buffers.get(self._muxed.stream_id)
        if held is not None:
            held.clear()
        await self._stream.reset()

    async def _grant_due(self) -> None:
        due_bytes, self._due_bytes = self._due_bytes, 0
        if due_bytes:
            self._muxed.recv_window += due_bytes
            await self._muxed.send_window_update(due_bytes)
