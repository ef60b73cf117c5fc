"""Pass the bytes of one p2p link between its two threads: bytes that leave and bytes that came, both bounded.

The event loop and the libp2p thread share nothing else. Each side is woken once, not for each piece, because a hop
between the threads costs 70 to 200 us.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rollcast.wire.versions.chunks import BytesLike

ROOM_BYTES = 65_477
"""Bytes below which more may be given to send: as many as libp2p takes at once (peer/p2p/streams/lanes.py), so that
what follows fills the next piece."""
# A fast link has more room, as much as leaves within _ROOM_S, so that one hop between the threads serves several
# pieces. It has no more than that, because what is sent next is decided that much earlier.
_ROOM_S = 0.004
_ROOM_BYTES_MOST = 4 * ROOM_BYTES
_RATE_OVER_S = 0.05
# Each piece that waits costs hundreds of bytes besides its data, and keeps the whole message in memory to which it
# belongs: if the other end sends byte by byte, one window of bytes would take gigabytes. So shorter pieces are joined.
_PIECE_BYTES_LEAST = 1024
Wake = Callable[[], None]
"""A function that wakes the other thread; it may be called after that thread has ended."""


def _ignore() -> None:
    pass


class LinkBuffers:
    """The thread-safe buffers of one link: methods of the event loop first, then those of the libp2p thread.

    Args:
        window_bytes: bytes that the other end may send ahead of what was taken here. libp2p enforces no window of its
            own.
        call_loop: has the event loop call a function, from any thread.
        clock: returns seconds, in any thread.
    """

    def __init__(
        self, window_bytes: int, call_loop: Callable[[Wake], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._window_bytes = window_bytes
        self._call_loop = call_loop
        self._clock = clock
        self.on_change: Wake = _ignore  # called on the event loop: bytes came or left, or the link ended
        self._wake_host: Wake = _ignore
        self._leaving: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._leaving_bytes = 0
        self._given_bytes = 0
        self._room_bytes = ROOM_BYTES
        self._full = False
        self._rate_since_s, self._rate_bytes = clock(), 0
        self._came: deque[BytesLike] = deque()
        self._came_bytes = 0
        self._taken_bytes = 0
        self._granted_bytes = window_bytes
        self._ring_due = False
        self._finishing = False
        self._aborted = False
        self._over = ""
        self._broken = False

    # ------------------------------------------------------------- event loop

    def give(self, buffers: Sequence[BytesLike]) -> None:
        """Queue these buffers to be sent."""
        with self._lock:
            for buffer in buffers:
                view = memoryview(buffer).cast("B")
                self._leaving.append(view)
                self._waiting_bytes += len(view)
                self._leaving_bytes += len(view)
                self._given_bytes += len(view)
            self._full = self._full or self._waiting_bytes >= self._room_bytes
        self._wake_host()

    @property
    def full(self) -> bool:
        """Return whether so much waits for the libp2p thread that more should wait elsewhere."""
        return self._full

    @property
    def leaving_bytes(self) -> int:
        """Return the bytes that were given and are not with the kernel yet."""
        return self._leaving_bytes

    @property
    def gone_bytes(self) -> int:
        """Return the bytes that were given and are with the kernel."""
        with self._lock:
            return self._given_bytes - self._leaving_bytes

    def take(self) -> BytesLike | None:
        """Return the next piece that came, or None; the caller must call ``consumed`` once the piece is used."""
        with self._lock:
            return self._came.popleft() if self._came else None

    def consumed(self, size_bytes: int) -> None:
        """Note that ``size_bytes`` that came no longer take memory, so that as many others may come."""
        with self._lock:
            self._taken_bytes += size_bytes
            granted = self._taken_bytes + self._window_bytes
            if granted - self._granted_bytes < self._window_bytes // 4:
                return
            self._granted_bytes = granted
        self._wake_host()

    def limit_window(self, size_bytes: int) -> None:
        """Let at most ``size_bytes`` come ahead; what was granted already may still come."""
        with self._lock:
            self._window_bytes = size_bytes

    def finish(self) -> None:
        """Close the link once all that was given has left."""
        with self._lock:
            self._finishing = True
        self._wake_host()

    def abort(self) -> None:
        """Close the link now."""
        with self._lock:
            self._finishing = self._aborted = True
        self._wake_host()

    @property
    def over(self) -> str:
        """Return why nothing comes any more; empty while something may."""
        return self._over

    @property
    def broken(self) -> bool:
        """Return whether the link ended without the other end's announcing it; what came before is void then."""
        return self._broken

    # ------------------------------------------------------------- libp2p thread

    def attach(self, wake_host: Wake) -> None:
        """Call ``wake_host`` now, and from now on whenever there is something for the libp2p thread."""
        self._wake_host = wake_host
        wake_host()

    def parts(self, size_bytes_most: int) -> list[memoryview]:
        """Return the next bytes to leave, empty if there are none; the caller must call ``left`` once they have."""
        with self._lock:
            parts: list[memoryview] = []
            while self._leaving and size_bytes_most:
                view = self._leaving.popleft()
                if len(view) > size_bytes_most:
                    self._leaving.appendleft(view[size_bytes_most:])
                    view = view[:size_bytes_most]
                parts.append(view)
                size_bytes_most -= len(view)
                self._waiting_bytes -= len(view)
            # The event loop is woken for several pieces, not just for the next.
            has_room = self._full and self._waiting_bytes < max(ROOM_BYTES, self._room_bytes // 2)
            self._full = self._full and not has_room
        if has_room:
            self._call_loop(self._ring)
        return parts

    def left(self, size_bytes: int) -> None:
        """Note that ``size_bytes`` more are with the kernel."""
        now = self._clock()
        with self._lock:
            self._leaving_bytes -= size_bytes
            self._rate_bytes += size_bytes
            seconds = now - self._rate_since_s
            if seconds >= _RATE_OVER_S:
                ahead_bytes = int(self._rate_bytes / seconds * _ROOM_S)
                self._room_bytes = max(ROOM_BYTES, min(ahead_bytes, _ROOM_BYTES_MOST))
                self._rate_since_s, self._rate_bytes = now, 0

    def opened(self, granted_bytes: int) -> int:
        """Note how many bytes libp2p has granted the other end by itself.

        Returns:
            the bytes to grant on top of them.
        """
        with self._lock:
            more_bytes = max(0, self._window_bytes - granted_bytes)
            self._granted_bytes = granted_bytes + more_bytes
            return more_bytes

    def came(self, data: BytesLike) -> bool:
        """Keep what came; return False if the other end sent more than it was granted. ``rest`` must be called soon."""
        with self._lock:
            self._came_bytes += len(data)
            if self._came_bytes > self._granted_bytes:
                return False
            self._ring_due = self._ring_due or not self._came
            last = self._came[-1] if self._came else None
            if len(data) >= _PIECE_BYTES_LEAST:
                self._came.append(data)
            elif isinstance(last, bytearray) and len(last) < ROOM_BYTES:
                last += data
            else:
                self._came.append(bytearray(data))
        return True

    def rest(self) -> None:
        """Wake the event loop for what came, because nothing more is here for now."""
        if self._ring_due:
            self._ring_due = False
            self._call_loop(self._ring)

    @property
    def granted_bytes(self) -> int:
        """Return how many bytes the other end may have sent in all."""
        return self._granted_bytes

    @property
    def finishing(self) -> bool:
        """Return whether no more will be given."""
        return self._finishing

    @property
    def aborted(self) -> bool:
        """Return whether the link is to be closed at once."""
        return self._aborted

    def end(self, reason: str, *, broken: bool = True) -> None:
        """Note that nothing comes any more; the first reason stands.

        ``broken`` is False if the other end announced the end.
        """
        with self._lock:
            if not self._over:
                self._over, self._broken = reason, broken
        self._call_loop(self._ring)

    def _ring(self) -> None:
        self.on_change()
