"""Hash states piece by piece, so that chunks of the largest size need no second pass over the bytes.

The hash of a state is that of the list of the BLAKE3 hashes of its leaves, 1 MiB each. A keyframe in chunks of that
size has the same list: who has checked its chunks against the signed list has checked the state, and who has hashed a
state has its chunk list. (BLAKE3 itself is such a tree, but no Python package gives out its inner nodes.)
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from blake3 import blake3

from rollcast.wire.limits import CHUNK_SIZE_BYTES_MAX
from rollcast.wire.versions.chunks import BytesLike, chunk_list_hash

LEAF_BYTES = CHUNK_SIZE_BYTES_MAX
"""Bytes of a state that are hashed together; the last leaf may be shorter."""

_STEP_BYTES = 8 << 20  # of a file; between two steps other threads have their turn
_SHARED_BYTES_LEAST = 1 << 30  # a smaller file is hashed in pieces too small for waking other cores to pay


class StateHash:
    """The hash of a state whose bytes come in order, by one thread at a time.

    Args:
        all_cores: hash each leaf on all cores.
    """

    def __init__(self, *, all_cores: bool = False) -> None:
        self._threads = blake3.AUTO if all_cores else 1
        self._leaf = blake3(max_threads=self._threads)
        self._leaf_bytes = 0
        self._full_leaves = bytearray()
        self.done_bytes = 0
        """The bytes hashed so far."""

    def update(self, data: BytesLike) -> None:
        """Hash the bytes that follow."""
        view = memoryview(data).cast("B")
        self.done_bytes += len(view)
        while len(view):
            piece, view = view[: LEAF_BYTES - self._leaf_bytes], view[LEAF_BYTES - self._leaf_bytes :]
            self._leaf.update(piece)
            self._leaf_bytes += len(piece)
            if self._leaf_bytes == LEAF_BYTES:
                self._full_leaves += self._leaf.digest()
                self._leaf, self._leaf_bytes = blake3(max_threads=self._threads), 0

    @property
    def leaves(self) -> bytes:
        """Return the hashes of all leaves so far, 32 bytes each: the chunk list for chunks of LEAF_BYTES."""
        return bytes(self._full_leaves) + (self._leaf.digest() if self._leaf_bytes else b"")

    def digest(self) -> bytes:
        """Return the hash of the bytes so far, 32 bytes, which is the state's once all are hashed."""
        return chunk_list_hash(self.leaves)


def state_hash(data: BytesLike) -> bytes:
    """Return the hash of a whole state, 32 bytes."""
    hashing = StateHash(all_cores=True)
    hashing.update(data)
    return hashing.digest()


class PrefixHash:
    """The state hash of a file of known size that grows from its beginning: little is left to hash when the rest comes.

    One thread at a time advances it, in order.

    Args:
        descriptor: a readable descriptor; the file may be written beyond what has been hashed, and the descriptor
        closed.
        size_bytes: the size of the whole file, which the file has already.
        begun: the hash of its first bytes, if they were hashed before.

    Raises:
        OSError: the file cannot be mapped.
    """

    def __init__(self, descriptor: int, size_bytes: int, begun: StateHash | None = None) -> None:
        self._view = memoryview(mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ))
        self._hash = begun or StateHash(all_cores=size_bytes >= _SHARED_BYTES_LEAST)

    @property
    def done_bytes(self) -> int:
        """Return the number of bytes hashed so far."""
        return self._hash.done_bytes

    def advance(self, until_bytes: int) -> None:
        """Hash the bytes up to ``until_bytes``."""
        while self.done_bytes < until_bytes:
            stop = min(until_bytes, self.done_bytes + _STEP_BYTES)
            self._hash.update(self._view[self.done_bytes : stop])

    def take(self, pieces: Iterable[BytesLike]) -> None:
        """Hash the bytes that follow, from memory: they are those of the file."""
        for piece in pieces:
            self._hash.update(piece)

    def digest(self) -> bytes:
        """Return the digest of the bytes hashed so far, which is the file's once all are."""
        return self._hash.digest()
