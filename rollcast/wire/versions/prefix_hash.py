"""The hash of a file while it grows from its beginning: what is there is hashed before the rest arrives."""

from __future__ import annotations

import mmap

from blake3 import blake3

_STEP_BYTES = 8 << 20  # enough for all cores to share
_SHARED_BYTES_LEAST = 1 << 30  # a smaller file is hashed in pieces too small to be worth waking other cores


class PrefixHash:
    """BLAKE3 of a file of known size, advanced in order. One thread at a time.

    Args:
        descriptor: readable; may be written to beyond what has been hashed, and closed.
        size_bytes: of the whole file, which has that size already.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._view = memoryview(mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ))
        self._blake3 = blake3(max_threads=blake3.AUTO if size_bytes >= _SHARED_BYTES_LEAST else 1)
        self.done_bytes = 0

    def advance(self, until_bytes: int) -> None:
        """Hash on to ``until_bytes``."""
        while self.done_bytes < until_bytes:
            stop = min(until_bytes, self.done_bytes + _STEP_BYTES)
            self._blake3.update(self._view[self.done_bytes : stop])
            self.done_bytes = stop

    def digest(self) -> bytes:
        """Of what has been hashed: of the file, once that is all of it."""
        return self._blake3.digest()
