"""Pump frames between the two libp2p streams of a p2p link and the link's buffers, on libp2p's thread (trio).

A link consists of two lanes, one stream per direction; peer/p2p/streams/opening.py describes how they begin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamReset
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamReset

from peer.p2p.streams.buffers import ROOM_BYTES, LinkBuffers
from peer.p2p.streams.opening import SIGN_OF_LIFE

# A noise message holds 65,519 bytes, of which a yamux header takes 12: a longer piece would need a second message.
# Through a relay, the whole message is the data of another yamux frame in another noise message, 30 bytes more.
PIECE_BYTES = ROOM_BYTES
_READ_BYTES = 256 << 10
# Wait for the other end to close after our last byte: an end that closes before it has read may discard what was sent.
_LINGER_S = 3.0
# The silence timeout is checked in parts, because this process itself may have been suspended for one of them.
_SILENCE_PARTS = 4
_CLOSE_S = 2.0
_SIGNS_READ_MOST = 512
# yamux polls its window every 10 ms and gives the connection up after 5 s, so the window is polled here before a write.
_WINDOW_LOOK_S = 0.005


class _Over(Exception):
    """The link has ended; the message says why."""


class Lanes:
    """The two lanes of one link.

    Args:
        sends: stream that carries this end's frames.
        receives: stream that carries the other end's frames.
        silence_timeout_s: seconds without a sign of life after which the other end counts as lost.
        wake: wraps a function so that a call from any thread runs it on this one.
    """

    def __init__(
        self,
        sends: Any,
        receives: Any,
        buffers: LinkBuffers,
        silence_timeout_s: float,
        wake: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._sends = sends
        self._receives = receives
        self._buffers = buffers
        self._silence_timeout_s = silence_timeout_s
        self._wake = wake
        self._changed = trio.Event()  # there are bytes to send, or the link is finishing
        self._grant_due = trio.Event()
        self._alive = False
        self._to_grant = 0
        self._sent_all = trio.Event()
        self._received_all = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Pump until the link has ended, and close both streams. The caller closes the connections."""
        pumps = (self._send, self._read_signs_of_life, self._watch, self._receive, self._grant)
        muxed = self._receives.muxed_stream
        try:
            # libp2p has opened the window by some amount during the negotiation already.
            waiting_bytes = len(muxed.conn.stream_buffers.get(muxed.stream_id, b""))
            self._to_grant = self._buffers.opened(muxed.recv_window + waiting_bytes)
            self._buffers.attach(self._wake(self._woken))
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for pump in pumps:
                        nursery.start_soon(self._guarded, pump)
        finally:
            muxed.conn.secured_conn.forget(muxed.stream_id)
            self._buffers.end("the libp2p thread ended")

    def _woken(self) -> None:
        if self._buffers.aborted:
            self._stop("the link was closed here")
        self._changed.set()
        self._grant_due.set()

    def _stop(self, reason: str) -> None:
        self._buffers.end(reason)
        self._scope.cancel()

    async def _guarded(self, pump: Callable[[], Awaitable[None]]) -> None:
        try:
            await pump()
        except _Over as over:
            self._stop(str(over))
        except (StreamEOF, StreamClosed):
            self._stop("the link was closed")
        except (StreamReset, MuxedStreamReset):
            self._stop("the link broke")
        except Exception as error:  # libp2p raises many kinds of errors; none may end the other links
            self._stop(f"the link broke: {error or type(error).__name__}")

    # ------------------------------------------------------------- the lane that carries this end's frames

    async def _send(self) -> None:
        while True:
            self._changed = trio.Event()
            parts = self._buffers.parts(PIECE_BYTES)
            if parts:
                size_bytes = sum(map(len, parts))
                await self._room(size_bytes)
                await self._sends.muxed_conn.send_data(self._sends.muxed_stream, parts)
                self._buffers.left(size_bytes)
            elif self._buffers.finishing:
                await self._sends.close_write()
                self._sent_all.set()
                with trio.move_on_after(_LINGER_S):
                    await self._received_all.wait()
                raise _Over("the link was closed here")
            else:
                await self._changed.wait()

    async def _room(self, size_bytes: int) -> None:
        """Wait until yamux's window has room, without a timeout: the relay watches that its links make progress."""
        muxed = self._sends.muxed_stream
        # yamux has no event for its window, and polls it every 10 ms itself.
        while muxed.send_window < size_bytes and not muxed.closed:  # noqa: ASYNC110
            await trio.sleep(_WINDOW_LOOK_S)

    async def _read_signs_of_life(self) -> None:
        """Read the other end's signs of life."""
        while await self._sends.read(_SIGNS_READ_MOST):
            self._alive = True
        raise _Over("the link was closed")

    async def _watch(self) -> None:
        """End the link if the other end is silent. The read is not cancelled, because a read of libp2p also writes."""
        silent_parts = 0
        while silent_parts < _SILENCE_PARTS:
            self._alive = False
            await trio.sleep(self._silence_timeout_s / _SILENCE_PARTS)
            silent_parts = 0 if self._alive else silent_parts + 1
        raise _Over(f"the other end sent nothing for {self._silence_timeout_s:g} s")

    # ------------------------------------------------------------- the lane that carries the other end's frames

    async def _receive(self) -> None:
        """Take all data at once, even if the relay is slow: libp2p's yamux gives up a writer whose reader pauses."""
        muxed = self._receives.muxed_stream
        muxed.conn.secured_conn.divert(muxed.stream_id, self)
        while True:
            try:
                # Data that is not diverted. The stream's own read would open the window again after every read, and by
                # more than there is room for; _grant opens it instead.
                data = await muxed.conn.read_stream(muxed.stream_id, _READ_BYTES)
            except MuxedStreamEOF:
                break
            self.take(memoryview(data), counted=True)
            self.rest()
        self._received_all.set()
        self._buffers.end("the link was closed", broken=False)
        with trio.move_on_after(_LINGER_S):  # time for the bytes that are queued to leave
            await self._sent_all.wait()
        raise _Over("the link was closed")

    def clear(self) -> bool:
        """See peer.p2p.streams.noise.Sink."""
        muxed = self._receives.muxed_stream
        return not muxed.conn.stream_buffers.get(muxed.stream_id)

    def take(self, data: memoryview, *, counted: bool = False) -> None:
        """See peer.p2p.streams.noise.Sink. ``counted``: yamux has subtracted the data from its window already."""
        if not counted:
            self._receives.muxed_stream.recv_window -= len(data)
        if not self._buffers.came(data):
            self._stop("the other end sent more than it may")

    def rest(self) -> None:
        """See peer.p2p.streams.noise.Sink."""
        self._buffers.rest()

    async def _grant(self) -> None:
        """Open yamux's window by the bytes that the event loop has taken, and send signs of life."""
        await self._open_window(self._to_grant)
        granted = self._buffers.granted_bytes
        while True:
            await self._receives.write(SIGN_OF_LIFE)
            with trio.move_on_after(self._silence_timeout_s / 3):
                while True:
                    self._grant_due = trio.Event()
                    more = self._buffers.granted_bytes - granted
                    granted += more
                    await self._open_window(more)
                    await self._grant_due.wait()

    async def _open_window(self, size_bytes: int) -> None:
        if size_bytes > 0:
            muxed = self._receives.muxed_stream
            muxed.recv_window += size_bytes
            await muxed.send_window_update(size_bytes)


async def close_quietly(*closers: Callable[[], Awaitable[None]]) -> None:
    """Close objects that libp2p may have closed already, in bounded time, even while being cancelled."""
    for close in closers:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_S):
            try:
                await close()
            except Exception:  # libp2p raises many kinds of errors when an object is closed twice
                continue
