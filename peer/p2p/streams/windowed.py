"""A libp2p stream with a fixed receive window, whose writer waits for room without a timeout (trio).

libp2p's own stream opens its window again after every read, up to 16 MiB, and gives the connection up when its writer
had no room for 5 s.
"""

from __future__ import annotations

from typing import Any

import trio
from libp2p.stream_muxer.exceptions import MuxedStreamEOF

# yamux polls its window every 10 ms and gives the connection up after 5 s, so the window is polled here before a write.
_WINDOW_LOOK_S = 0.005
_READ_BYTES = 256 << 10
# A noise message holds 65,519 bytes, and a yamux header takes 12 of them.
_PIECE_BYTES = 65_507


class WindowedStream:
    """Both directions of one stream; nothing else may read or write it from now on.

    Args:
        window_bytes: bytes that the other end may send before more is granted.
    """

    def __init__(self, stream: Any, window_bytes: int) -> None:
        self._stream = stream
        self._muxed = stream.muxed_stream
        self._window_bytes = window_bytes
        self._due_bytes = 0

    async def open(self) -> None:
        """Open the window to its full size; libp2p has opened it a little already."""
        waiting_bytes = len(self._muxed.conn.stream_buffers.get(self._muxed.stream_id, b""))
        self._due_bytes = max(0, self._window_bytes - self._muxed.recv_window - waiting_bytes)
        await self._grant_due()

    async def receive(self) -> bytes:
        """Return some of the data that has arrived; empty at the end. The caller must ``grant`` as much again."""
        try:
            data: bytes = await self._muxed.conn.read_stream(self._muxed.stream_id, _READ_BYTES)
        except MuxedStreamEOF:
            return b""
        return data

    async def grant(self, size_bytes: int) -> None:
        """Let the other end send ``size_bytes`` more."""
        self._due_bytes += size_bytes
        if self._due_bytes >= self._window_bytes // 4:
            await self._grant_due()

    async def send(self, data: bytes) -> None:
        """Send the data piece by piece as the window has room."""
        view = memoryview(data)
        while view:
            # yamux has no event for its window, and polls it every 10 ms itself.
            while self._muxed.send_window <= 0 and not self._muxed.closed:  # noqa: ASYNC110
                await trio.sleep(_WINDOW_LOOK_S)
            size_bytes = min(len(view), _PIECE_BYTES, max(1, self._muxed.send_window))
            await self._stream.write(bytes(view[:size_bytes]))
            view = view[size_bytes:]

    async def reset(self) -> None:
        """Reset both directions and drop received data that was not taken, which libp2p would keep for a minute."""
        held = self._muxed.conn.stream_buffers.get(self._muxed.stream_id)
        if held is not None:
            held.clear()
        await self._stream.reset()

    async def _grant_due(self) -> None:
        due_bytes, self._due_bytes = self._due_bytes, 0
        if due_bytes:
            self._muxed.recv_window += due_bytes
            await self._muxed.send_window_update(due_bytes)
