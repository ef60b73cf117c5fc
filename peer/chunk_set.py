"""A counted set of chunk indices, as the bitmap that travels in a Have message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.chunks import bitmap_add, bitmap_count, bitmap_has, new_bitmap, parse_bitmap


class ChunkSet:
    """Indices in [0, size), one bit each (see rollcast/wire/chunks.py)."""

    __slots__ = ("_bits", "count", "size")

    def __init__(self, size: int, indices: Iterable[int] = ()) -> None:
        self.size = size
        self.count = 0
        self._bits = new_bitmap(size)
        for index in indices:
            self.add(index)

    @classmethod
    def from_bitmap(cls, size: int, bitmap: bytes) -> ChunkSet | None:
        """Read a bitmap; None when its length or its unused bits do not fit ``size``."""
        chunks = cls(size)
        try:
            chunks._bits = parse_bitmap(bitmap, size)
        except MalformedMessage:
            return None
        chunks.count = bitmap_count(bitmap)
        return chunks

    @classmethod
    def full(cls, size: int) -> ChunkSet:
        """Every index below ``size``."""
        return cls(size, range(size))

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self.size and bitmap_has(self._bits, index)

    def __iter__(self) -> Iterator[int]:
        return (index for index in range(self.size) if bitmap_has(self._bits, index))

    def add(self, index: int) -> bool:
        """Add an index; False when it was there.

        Raises:
            IndexError: the index is outside [0, size).
        """
        if not 0 <= index < self.size:
            raise IndexError(f"chunk {index} of {self.size}")
        if bitmap_has(self._bits, index):
            return False
        bitmap_add(self._bits, index)
        self.count += 1
        return True

    @property
    def complete(self) -> bool:
        """Whether every index is in."""
        return self.count == self.size

    @property
    def bitmap(self) -> bytes:
        """The set as bytes, for the wire."""
        return bytes(self._bits)

    def covers(self, other: ChunkSet) -> bool:
        """Whether every index of ``other`` is in this set."""
        mine = int.from_bytes(self._bits, "big")
        theirs = int.from_bytes(other._bits, "big")
        return self.size == other.size and theirs & ~mine == 0
