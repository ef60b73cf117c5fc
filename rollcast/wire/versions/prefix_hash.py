"""Hash a file while it grows from its beginning, so that little is left to hash when the rest arrives."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from blake3 import blake3

from rollcast.wire.versions.chunks import BytesLike

_STEP_BYTES = 8 << 20  # enough for all cores to share
_SHARED_BYTES_LEAST = 1 << 30  # a smaller file is hashed in pieces too small for waking other cores to pay


class PrefixHash:
    """The BLAKE3 hash of a file of known size, advanced in order by one thread at a time.

    Args:
        descriptor: a readable descriptor; the file may be written beyond what has been hashed, and the descriptor
        closed.
        size_bytes: the size of the whole file, which the file has already.

    Raises:
        OSError: the file cannot be mapped.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._view = memoryview(mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ))
        self._blake3 = blake3(max_threads=blake3.AUTO if size_bytes >= _SHARED_BYTES_LEAST else 1)
        self.done_bytes = 0

    def advance(self, until_bytes: int) -> None:
        """Hash the bytes up to ``until_bytes``."""
        while self.done_bytes < until_bytes:
            stop = min(until_bytes, self.done_bytes + _STEP_BYTES)
            self._blake3.update(self._view[self.done_bytes : stop])
            self.done_bytes = stop

    def take(self, pieces: Iterable[BytesLike]) -> None:
        """Hash the bytes that follow, from memory: they are those of the file."""
        for piece in pieces:
            self._blake3.update(piece)
            self.done_bytes += len(piece)

    def digest(self) -> bytes:
        """Return the digest of the bytes hashed so far, which is the file's once all are."""
        return self._blake3.digest()
