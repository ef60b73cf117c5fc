"""Carry frames over one connection between a gateway and the core, whatever the transport below.

What an end sends in one turn of its loop leaves as one frame, and under load what it sends within ``gather_s``. Each
end sends at least a Beat a second: one that hears nothing for SILENT_BEATS of its own beats takes the other for lost.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import structlog

from coordinator.link.frames import Beat, FrameParser, ToCore, ToGateway, encode, frame
from rollcast.runtime.errors import MalformedMessage

log = structlog.get_logger()

BEAT_S = 1.0
SILENT_BEATS = 5  # beats of this end: time in which its loop did not run counts for one of them at most
GATHER_S = 0.02
"""Seconds between two frames of the core. Its answers follow from the store's commits, which take about as long."""
FRAME_BYTES = 1 << 20  # of items, from which a frame leaves before the turn ends
READ_BYTES = 256 << 10
WAITING_BYTES_MAX = 256 << 20  # that wait for the other end; an end that lets more wait is lost
_BEAT = encode(Beat())


class LinkConnection(asyncio.BufferedProtocol):
    """One end of a link.

    Args:
        received: takes the content of each frame; a MalformedMessage from it ends the link.
        lost: called once, with the reason, when the link has ended; not if it never was connected.
        made: called when it is connected, which for TLS means after the handshake.
        gather_s: seconds between two of its frames; an item that comes later leaves with its turn.
    """

    def __init__(
        self,
        received: Callable[[bytes], None],
        lost: Callable[[str], None],
        made: Callable[[], None] = lambda: None,
        *,
        gather_s: float = GATHER_S,
    ) -> None:
        self._gather_s = gather_s
        self._made = made
        self._received = received
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = FrameParser()
        self._buffer = memoryview(bytearray(READ_BYTES))  # asyncio's TLS reads into slices, which must not be copies
        self._items: list[bytes] = []
        self._items_bytes = 0
        self._sent_at = float("-inf")  # the loop's time
        self._flush_due: asyncio.Handle | None = None
        self._silent_beats = 0
        self._beat_timer: asyncio.TimerHandle | None = None
        self._ended_because = ""
        self.is_open = False

    @property
    def waiting_bytes(self) -> int:
        """Return how many bytes the other end has not taken yet."""
        return self._items_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def silent_s(self) -> float:
        """Return for how long this end has heard nothing, in whole beats of its own."""
        return self._silent_beats * BEAT_S

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """Return what TLS knows about the other end; None for a Unix socket."""
        return None if self._transport is None else self._transport.get_extra_info("ssl_object")

    def send(self, item: ToCore | ToGateway) -> None:
        """Send an item with others; it is discarded once the link has ended."""
        if not self.is_open:
            return
        data = encode(item)
        if not self._items:
            next_at = self._sent_at + self._gather_s
            due = self._loop.time() >= next_at
            self._flush_due = self._loop.call_soon(self._flush) if due else self._loop.call_at(next_at, self._flush)
        self._items.append(data)
        self._items_bytes += len(data)
        if self._items_bytes >= FRAME_BYTES:
            self._flush()

    def end(self, reason: str) -> None:
        """End the link after what was sent."""
        self._flush()
        if self.is_open and self._transport is not None:
            self._stop(reason)
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the link at once."""
        self._stop(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over an established connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True
        self._beat_timer = self._loop.call_later(BEAT_S, self._beat)
        self._made()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes, the same each time."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the frames that are complete."""
        self._silent_beats = 0
        try:
            for body in self._parser.bodies(self._buffer[:nbytes]):
                if not self.is_open:
                    return
                self._received(body)
        except MalformedMessage as error:
            self.abort(f"{error.what}: {error.cause}" if error.cause else error.what)

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection."""
        self._stop(str(error) if error else "the other end closed the connection")
        self._lost(self._ended_because)

    def _stop(self, reason: str) -> None:
        self.is_open = False
        self._ended_because = self._ended_because or reason
        if self._beat_timer is not None:
            self._beat_timer.cancel()

    def _flush(self) -> None:
        if not self._items or not self.is_open or self._transport is None:
            return
        items, self._items, self._items_bytes = self._items, [], 0
        if self._flush_due is not None:  # what is sent later has its own time
            self._flush_due.cancel()
        self._transport.write(frame(items))
        self._sent_at = self._loop.time()
        if self.waiting_bytes > WAITING_BYTES_MAX:
            self.abort(f"the other end does not read: {self.waiting_bytes} bytes wait for it")

    def _beat(self) -> None:
        self._silent_beats += 1
        if self._silent_beats > SILENT_BEATS:
            self.abort(f"the other end was silent for {SILENT_BEATS * BEAT_S:g} s")
            return
        if not self._items and self._transport is not None:
            self._transport.write(frame([_BEAT]))
        self._beat_timer = self._loop.call_later(BEAT_S, self._beat)
