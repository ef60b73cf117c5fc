"""A set of chunk indices as the bitmap that travels in a Have message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class ChunkSet:
    """Indices in [0, size): one bit each, most significant bit first, chunk 0 first (proto message Have)."""

    __slots__ = ("_bits", "count", "size")

    def __init__(self, size: int, indices: Iterable[int] = ()) -> None:
        self.size = size
        self.count = 0
        self._bits = bytearray((size + 7) // 8)
        for index in indices:
            self.add(index)

    @classmethod
    def from_bitmap(cls, size: int, bitmap: bytes) -> ChunkSet | None:
        """Read a bitmap; None when its length or its padding bits do not fit ``size``."""
        if len(bitmap) != (size + 7) // 8:
            return None
        if size % 8 and bitmap and bitmap[-1] & (0xFF >> (size % 8)):
            return None
        chunks = cls(size)
        chunks._bits[:] = bitmap
        chunks.count = sum(byte.bit_count() for byte in bitmap)
        return chunks

    @classmethod
    def full(cls, size: int) -> ChunkSet:
        """Every index below ``size``."""
        return cls(size, range(size))

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self.size and bool(self._bits[index >> 3] & (0x80 >> (index & 7)))

    def __iter__(self) -> Iterator[int]:
        return (index for index in range(self.size) if index in self)

    def add(self, index: int) -> bool:
        """Add an index; False when it was there.

        Raises:
            IndexError: the index is outside [0, size).
        """
        if not 0 <= index < self.size:
            raise IndexError(f"chunk {index} of {self.size}")
        bit = 0x80 >> (index & 7)
        if self._bits[index >> 3] & bit:
            return False
        self._bits[index >> 3] |= bit
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
