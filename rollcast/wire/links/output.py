"""Encrypt and send what one link has to send: in pieces as large as the link is fast, and no earlier than needed.

A slow link must choose the next chunk late, because what waits in a queue only delays what is newer. A fast one must
not be woken for every few kilobytes. Both follow from one figure: the bytes that the link carries within
``_AHEAD_S``. They bound what the kernel takes ahead (TCP_NOTSENT_LOWAT) and what may wait here while further chunks
are accepted.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from rollcast.wire.links.queue_limit import QueueLimit, UplinkQueue
from rollcast.wire.links.raw_tls import TakenTls
from rollcast.wire.links.tcp import measure_queue, set_unsent_bytes
from rollcast.wire.versions.chunks import BytesLike

_PIECE_BYTES = 256 << 10  # encrypted at once: it stays in the processor's cache until the kernel has copied it
_AHEAD_S = 0.002
# Links slower than half a gigabit per second get the next chunk only when the last one has left.
_AHEAD_BYTES_LEAST = 128 << 10
_AHEAD_BYTES_MOST = 1 << 20
# A rate is of at least this long a time in which bytes waited without a pause.
_MEASURED_S_LEAST = 0.05
_PAUSE_S = 0.002
_UPLINK = UplinkQueue()  # that of this process


class SendPace:
    """Estimates how fast a socket takes bytes, from the times in which more of them waited or followed. Pure."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._emptied_s = 0.0
        self._bytes = 0
        self._at_once = False  # nothing has waited since the measurement began
        self.bytes_per_second = 0.0
        """The newest rate; 0 if none was measured."""

    def blocked(self, now: float) -> bool:
        """Note that the socket takes no more for the moment; return whether a measurement begins."""
        begins = self._at_once or self._pauses(now)
        if begins:
            self._began_s, self._bytes, self._at_once = now, 0, False
        return begins

    def _pauses(self, now: float) -> bool:
        return self._began_s is None or now - self._emptied_s > _PAUSE_S

    def emptied(self, size_bytes: int, now: float) -> bool:
        """Note that the socket has taken the last of ``size_bytes`` since the measurement began or the last call.

        Returns whether there is a new rate.
        """
        self._emptied_s = now
        if self._began_s is None:
            return False
        self._bytes += size_bytes
        if now - self._began_s < _MEASURED_S_LEAST:
            return False
        self.bytes_per_second = self._bytes / (now - self._began_s)
        self._began_s, self._bytes = now, 0
        return True

    def taken_at_once(self, size_bytes: int, now: float) -> bool:
        """Note that the socket had room for ``size_bytes``: a link as fast as this process never lets bytes wait.

        Returns whether there is a new rate.
        """
        if self._pauses(now):
            self._began_s = self._emptied_s = now  # what an idle socket takes does not show how fast it is
            self._bytes, self._at_once = 0, True
            return False
        return self.emptied(size_bytes, now)

    @property
    def ahead_bytes(self) -> int:
        """Return the bytes that may be given ahead: a power of two, or 0 for a link that is not fast."""
        carried = int(self.bytes_per_second * _AHEAD_S)
        if carried < _AHEAD_BYTES_LEAST:
            return 0
        return min(_AHEAD_BYTES_MOST, 1 << (carried.bit_length() - 1))


class LinkOutput:
    """The bytes that one link sends; they wait as plaintext and are encrypted when the socket has room.

    Args:
        transport: the TCP connection below TLS. Its ``pause_writing`` and ``resume_writing`` must be passed on, and its
            limit of waiting bytes must be 0.
    """

    def __init__(self, tls: TakenTls, transport: asyncio.Transport, sock: socket.socket) -> None:
        self._tls = tls
        self._transport = transport
        self._sock = sock
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._blocked = False
        self._pace = SendPace()
        self._limit = QueueLimit(_UPLINK)
        self._given_bytes = 0  # to the transport, and those of them at the last measurement
        self._counted_bytes = 0
        self._ahead_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes that wait in this process."""
        if not self._blocked:
            return self._waiting_bytes  # the transport reports at once if it holds any
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    @property
    def taken_bytes(self) -> int:
        """Return the encrypted bytes that the kernel has taken so far."""
        return self._given_bytes - self._transport.get_write_buffer_size()

    @property
    def full(self) -> bool:
        """Whether so much waits that the next chunk should not be chosen yet."""
        if not self._blocked:
            return self._waiting_bytes > self._ahead_bytes
        return self.waiting_bytes > self._ahead_bytes

    def write(self, *buffers: BytesLike) -> None:
        """Queue bytes; they must not change before they have left. ``pump`` sends them."""
        for buffer in buffers:
            view = memoryview(buffer)
            self._waiting.append(view)
            self._waiting_bytes += len(view)

    def pump(self, now: float, *, everything: bool = False) -> float:
        """Encrypt and send as much as the link has room for; ``everything`` leaves what there is no room for to the
        transport.

        Args:
            now: seconds on the event loop's clock.

        Returns:
            Seconds after which to try again if the limit of a slow link left no room; 0 if it did.

        Raises:
            ssl.SSLError: the connection failed before.
        """
        while (self._waiting or self._tls.has_output) and (everything or not self._blocked):
            if self._transport.is_closing():
                return 0.0  # the connection is lost: asyncio would warn of each further write on stderr
            room_bytes = self._waiting_bytes if everything else self._room_bytes(now)
            if self._waiting and not room_bytes:
                return self._limit.pause_s
            self._encrypt_piece(min(_PIECE_BYTES, room_bytes))
            data = self._tls.output()
            self._given_bytes += len(data)
            self._transport.write(memoryview(data))
            if not self._blocked:
                self._note_rate(self._pace.taken_at_once(self._newly_taken_bytes(), now))
        return 0.0

    def paused(self, now: float) -> None:
        """Note that the transport holds bytes that the socket does not take."""
        self._blocked = True
        if self._pace.blocked(now):
            self._counted_bytes = self.taken_bytes  # what an idle socket took before does not show how fast it is

    def resumed(self, now: float) -> None:
        """Note that the transport holds nothing any more; ``pump`` should follow."""
        self._blocked = False
        self._note_rate(self._pace.emptied(self._newly_taken_bytes(), now))

    def _newly_taken_bytes(self) -> int:
        """Return the bytes given to the socket, which has all of them now, since they were counted last."""
        taken, self._counted_bytes = self._given_bytes - self._counted_bytes, self._given_bytes
        return taken

    def _note_rate(self, measured: bool) -> None:
        if measured and self._pace.ahead_bytes != self._ahead_bytes:
            self._ahead_bytes = self._pace.ahead_bytes
            set_unsent_bytes(self._sock, self._ahead_bytes)

    def _room_bytes(self, now: float) -> int:
        return self._limit.room_bytes(self._waiting_bytes, self.taken_bytes, lambda: measure_queue(self._sock), now)

    def _encrypt_piece(self, room: int) -> None:
        while self._waiting and room:
            view = self._waiting.popleft()
            if len(view) > room:
                self._waiting.appendleft(view[room:])
                view = view[:room]
            room -= len(view)
            self._waiting_bytes -= len(view)
            self._tls.write(view)
