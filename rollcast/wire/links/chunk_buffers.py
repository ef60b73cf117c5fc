"""Reuse the memory of received chunks: a fresh page costs the kernel more than receiving into it."""

from __future__ import annotations

import sys
from collections import deque

# The relay keeps the newest 32 MiB of chunks besides those that wait for the disk, 32 MiB at most. A buffer that is not
# kept for the next chunk costs its allocation, zeros and page faults each time.
_KEPT_BYTES_MOST = 72 << 20
_LOOKED_AT_MOST = 4
_REUSED_FROM_BYTES = 16 << 10  # below this the allocator has memory at hand


def _references_to_last(buffers: deque[bytearray]) -> int:
    return sys.getrefcount(buffers[-1])


_ALONE = _references_to_last(deque([bytearray(1)]))
"""References to a buffer without views: in CPython every view, and every slice of one, refers to the buffer."""


class ChunkBuffers:
    """Buffers of equal size, taken again once nothing refers to them. Not for several threads."""

    def __init__(self, kept_bytes_most: int = _KEPT_BYTES_MOST) -> None:
        self._kept_bytes_most = kept_bytes_most
        self._size_bytes = 0
        self._buffers: deque[bytearray] = deque()

    def take(self, size_bytes: int) -> bytearray:
        """Return a buffer with any content; it counts as used while a view of it exists."""
        if size_bytes < _REUSED_FROM_BYTES:
            return bytearray(size_bytes)
        if size_bytes != self._size_bytes:
            if 2 * size_bytes < self._size_bytes:
                return bytearray(size_bytes)  # the last chunk of an encoding
            self._buffers, self._size_bytes = deque(), size_bytes
        buffers = self._buffers
        for _ in range(min(_LOOKED_AT_MOST, len(buffers))):
            buffers.rotate(-1)
            if _references_to_last(buffers) == _ALONE:
                return buffers[-1]
        fresh = bytearray(size_bytes)
        if (len(buffers) + 1) * size_bytes <= self._kept_bytes_most:
            buffers.append(fresh)
        return fresh


SHARED = ChunkBuffers()
"""The buffers of this process's links."""
