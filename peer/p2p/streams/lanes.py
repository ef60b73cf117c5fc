"""Pump frames between the two libp2p streams of a p2p link and the link's buffers, on libp2p's thread (trio).

The module opening says how a link's two lanes begin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamReset
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamReset

from peer.p2p.streams.buffers import ROOM_BYTES, LinkBuffers
from peer.p2p.streams.opening import SIGN_OF_LIFE

# One noise message holds 65,519 bytes, and a yamux header takes 12 of them: a longer piece would cost a second message.
# Through a relay the whole message is data of another yamux frame in another noise message, which takes 30 bytes more.
PIECE_BYTES = ROOM_BYTES
_READ_BYTES = 256 << 10
# After our last byte: until the other end closes too. Who closes before it has read may take back what was sent.
_LINGER_S = 3.0
# Of the time in which the other end says nothing, this process may have stood still for one part: what came is read.
_SILENCE_PARTS = 4
_CLOSE_S = 2.0
_SIGNS_READ_MOST = 512
# yamux itself looks every 10 ms whether its window opened, and gives the connection up after 5 s: we look before it.
_WINDOW_LOOK_S = 0.005


class _Over(Exception):
    """The link is over, with a reason for people."""


class Lanes:
    """One link.

    Args:
        sends: stream of the lane that carries our frames.
        receives: stream of the lane that carries the other end's.
        silence_timeout_s: an end that gives no sign of life for this long is given up.
        wake: makes a function that calls the one given in this thread, from any thread.
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
        self._changed = trio.Event()  # given bytes, or a finish
        self._grant_due = trio.Event()
        self._heard = False
        self._to_grant = 0
        self._sent_all = trio.Event()
        self._received_all = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Until the link is over; then both streams are closed. The caller closes the connections."""
        pumps = (self._send, self._hear, self._watch, self._receive, self._grant)
        muxed = self._receives.muxed_stream
        try:
            # libp2p has opened the window during the negotiation already, by as much as it thought right.
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
        except Exception as error:  # libp2p raises many kinds; none may take the other links with it
            self._stop(f"the link broke: {error or type(error).__name__}")

    # ------------------------------------------------------------- the lane that carries our frames

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
        """Wait until yamux's window takes it. Whoever gave it watches that something moves."""
        muxed = self._sends.muxed_stream
        # yamux has no event for it, and looks every 10 ms itself.
        while muxed.send_window < size_bytes and not muxed.closed:  # noqa: ASYNC110
            await trio.sleep(_WINDOW_LOOK_S)

    async def _hear(self) -> None:
        """The other end's signs of life."""
        while await self._sends.read(_SIGNS_READ_MOST):
            self._heard = True
        raise _Over("the link was closed")

    async def _watch(self) -> None:
        """Give up an end that says nothing. The read itself is never cancelled: it also writes."""
        silent_parts = 0
        while silent_parts < _SILENCE_PARTS:
            self._heard = False
            await trio.sleep(self._silence_timeout_s / _SILENCE_PARTS)
            silent_parts = 0 if self._heard else silent_parts + 1
        raise _Over(f"the other end said nothing for {self._silence_timeout_s:g} s")

    # ------------------------------------------------------------- the lane that carries the other end's

    async def _receive(self) -> None:
        """Take what comes at once, whoever waits for what: a yamux reader that pauses kills the writer."""
        muxed = self._receives.muxed_stream
        muxed.conn.secured_conn.divert(muxed.stream_id, self)
        while True:
            try:
                # What is not diverted. The stream's own read would grant as much again for every read, and more than
                # it has: see _grant.
                data = await muxed.conn.read_stream(muxed.stream_id, _READ_BYTES)
            except MuxedStreamEOF:
                break
            self.take(memoryview(data), counted=True)
            self.rest()
        self._received_all.set()
        self._buffers.end("the link was closed", broken=False)
        with trio.move_on_after(_LINGER_S):  # the event loop lets what it has given leave, and finishes
            await self._sent_all.wait()
        raise _Over("the link was closed")

    def clear(self) -> bool:
        """See peer.p2p.streams.noise.Sink."""
        muxed = self._receives.muxed_stream
        return not muxed.conn.stream_buffers.get(muxed.stream_id)

    def take(self, data: memoryview, *, counted: bool = False) -> None:
        """See peer.p2p.streams.noise.Sink. ``counted``: yamux has taken it off its window."""
        if not counted:
            self._receives.muxed_stream.recv_window -= len(data)
        if not self._buffers.came(data):
            self._stop("the other end sent more than it may")

    def rest(self) -> None:
        """See peer.p2p.streams.noise.Sink."""
        self._buffers.rest()

    async def _grant(self) -> None:
        """Open yamux's window by what the event loop has taken, and give signs of life."""
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
    """Close what libp2p may have closed already, in bounded time, also while being cancelled."""
    for close in closers:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_S):
            try:
                await close()
            except Exception:  # libp2p raises many kinds when something is closed twice
                continue
