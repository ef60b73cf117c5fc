"""The libp2p thread's side of one p2p link: four pumps between two libp2p streams and the link's buffers (trio)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamReset

from peer.p2p.buffers import LinkBuffers
from peer.p2p.opening import FIRST_GRANT_BYTES, GRANT_BYTES, encode_grant, parse_grant
from rollcast.runtime.errors import MalformedMessage

# One noise message holds 65,519 bytes, and a yamux header takes 12 of them: a longer piece would cost a second message.
PIECE_BYTES = 65_507
_READ_BYTES = 256 << 10
# After our last byte: until the other end closes too.
_LINGER_S = 1.0
_CLOSE_S = 2.0
_GRANTS_READ_MOST = 512
# yamux itself looks every 10 ms whether its window opened, and gives the connection up after 5 s: we look before it.
_WINDOW_LOOK_S = 0.005


class _Over(Exception):
    """The link is over, with a reason for people."""


class Lanes:
    """One link.

    Args:
        sends: stream of the lane that carries our frames.
        receives: stream of the lane that carries the other end's.
        silence_timeout_s: an end that grants nothing for this long is given up.
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
        self._changed = trio.Event()  # given bytes, a grant, a finish
        self._grant_due = trio.Event()
        self._sent_all = trio.Event()
        self._received_all = trio.Event()
        self._may_send_bytes = FIRST_GRANT_BYTES
        self._sent_bytes = 0
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Until the link is over; then both streams are closed. The caller closes the connections."""
        self._buffers.attach(self._wake(self._woken))
        pumps = (self._send, self._read_grants, self._receive, self._grant)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for pump in pumps:
                        nursery.start_soon(self._guarded, pump)
        finally:
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
        except MalformedMessage as error:
            self._stop(error.what)
        except (StreamEOF, StreamClosed):
            self._stop("the link was closed")
        except StreamReset:
            self._stop("the link broke")
        except Exception as error:  # libp2p raises many kinds; none may take the other links with it
            self._stop(f"the link broke: {error or type(error).__name__}")

    # ------------------------------------------------------------- the lane that carries our frames

    async def _send(self) -> None:
        while True:
            self._changed = trio.Event()
            allowed = self._may_send_bytes - self._sent_bytes
            piece = self._buffers.piece(min(PIECE_BYTES, allowed))
            if piece:
                await self._room(len(piece))
                await self._sends.write(piece)
                self._sent_bytes += len(piece)
                self._buffers.left(len(piece))
            elif self._buffers.finishing and not self._buffers.leaving_bytes:
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
        while getattr(muxed, "send_window", math.inf) < size_bytes and not muxed.closed:  # noqa: ASYNC110
            await trio.sleep(_WINDOW_LOOK_S)

    async def _read_grants(self) -> None:
        """Grants, which are also the other end's signs of life."""
        rest = b""
        while True:
            with trio.move_on_after(self._silence_timeout_s) as waiting:
                rest += await self._sends.read(_GRANTS_READ_MOST * GRANT_BYTES)
            if waiting.cancelled_caught:
                raise _Over(f"the other end said nothing for {self._silence_timeout_s:g} s")
            whole = len(rest) - len(rest) % GRANT_BYTES
            self._may_send_bytes = parse_grant(rest[:whole], self._may_send_bytes)
            rest = rest[whole:]
            self._changed.set()

    # ------------------------------------------------------------- the lane that carries the other end's

    async def _receive(self) -> None:
        """Take what comes at once, whoever waits for what: a yamux reader that pauses kills the writer."""
        while True:
            try:
                data = await self._receives.read(_READ_BYTES)
            except (StreamEOF, StreamClosed):
                break
            if not data:
                break
            if not self._buffers.came(data):
                raise _Over("the other end sent more than it may")
        self._received_all.set()
        self._buffers.end("the link was closed")
        with trio.move_on_after(_LINGER_S):  # the event loop lets what it has given leave, and finishes
            await self._sent_all.wait()
        raise _Over("the link was closed")

    async def _grant(self) -> None:
        granted = FIRST_GRANT_BYTES
        while True:
            self._grant_due = trio.Event()
            granted = max(granted, self._buffers.granted_bytes)
            await self._receives.write(encode_grant(granted))
            with trio.move_on_after(self._silence_timeout_s / 3):
                while self._buffers.granted_bytes <= granted:
                    await self._grant_due.wait()
                    self._grant_due = trio.Event()


async def close_quietly(*closers: Callable[[], Awaitable[None]]) -> None:
    """Close what libp2p may have closed already, in bounded time, also while being cancelled."""
    for close in closers:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_S):
            try:
                await close()
            except Exception:  # libp2p raises many kinds when something is closed twice
                continue
