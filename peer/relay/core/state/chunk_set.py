"""Keep a counted set of chunk indices as the bitmap that travels in a Have message.

An index is set or looked up once a chunk, which may be every millisecond, so the bits are shifted here and not by a
function of ``rollcast.wire.versions.chunks``, which defines the bitmap. The bits are bytes and not one integer: adding
an index to an integer of 2^18 bits (the largest encoding) would copy 32 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.chunks import bitmap_count, new_bitmap, parse_bitmap


class ChunkSet:
    """Indices in [0, size), one bit each (see rollcast/wire/versions/chunks.py)."""

    __slots__ = ("_bits", "count", "size")

    def __init__(self, size: int, indices: Iterable[int] = ()) -> None:
        self.size = size
        self.count = 0
        self._bits = new_bitmap(size)
        for index in indices:
            self.add(index)

    @classmethod
    def from_bitmap(cls, size: int, bitmap: bytes) -> ChunkSet | None:
        """Read a bitmap; return None if its length or its unused bits do not fit ``size``."""
        chunks = cls(size)
        try:
            chunks._bits = parse_bitmap(bitmap, size)
        except MalformedMessage:
            return None
        chunks.count = bitmap_count(bitmap)
        return chunks

    @classmethod
    def full(cls, size: int) -> ChunkSet:
        """Return the set of every index below ``size``."""
        chunks = cls(size)
        chunks._bits = bytearray((((1 << size) - 1) << -size % 8).to_bytes(len(chunks._bits), "big"))
        chunks.count = size
        return chunks

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self.size and bool(self._bits[index >> 3] & (0x80 >> (index & 7)))

    def __iter__(self) -> Iterator[int]:
        return (index for index in range(self.size) if index in self)

    def add(self, index: int) -> bool:
        """Add an index; return False if it was in the set already.

        Raises:
            IndexError: the index is outside [0, size).
        """
        if not 0 <= index < self.size:
            raise IndexError(f"chunk {index} of {self.size}")
        place, bit = index >> 3, 0x80 >> (index & 7)
        if self._bits[place] & bit:
            return False
        self._bits[place] |= bit
        self.count += 1
        return True

    def discard(self, index: int) -> None:
        """Remove an index if it is in the set."""
        if index in self:
            self._bits[index >> 3] ^= 0x80 >> (index & 7)
            self.count -= 1

    def add_all(self, other: ChunkSet) -> None:
        """Add every index of a set of the same size."""
        bits = self.as_int() | other.as_int()
        self._bits = bytearray(bits.to_bytes(len(self._bits), "big"))
        self.count = bits.bit_count()

    @property
    def complete(self) -> bool:
        """Return whether every index is in the set."""
        return self.count == self.size

    @property
    def bitmap(self) -> bytes:
        """Return the set as bytes, for the wire."""
        return bytes(self._bits)

    def as_int(self) -> int:
        """Return the bitmap as an integer, chunk 0 in its highest bit: cheap to combine with others of this size."""
        return int.from_bytes(self._bits, "big")

    def bits_of(self, indices: Iterable[int]) -> int:
        """Return these indices of a set of this size in the form of ``as_int``."""
        last = 8 * len(self._bits) - 1
        bits = 0
        for index in indices:
            bits |= 1 << (last - index)
        return bits

    def missing_below(self, index: int) -> int:
        """Return the indices below ``index`` that are not in this set, in the form of ``as_int``."""
        index = min(index, self.size)
        return ((1 << index) - 1) << (8 * len(self._bits) - index) & ~self.as_int()

    def first_of(self, bits: int, most: int, start: int = 0) -> list[int]:
        """Return at most ``most`` indices, lowest first, of a set of this size given in the form of ``as_int``.

        Those from ``start`` on come before those below it.
        """
        width = len(self._bits) * 8
        if start:
            after = bits & ((1 << (width - start)) - 1)
            first = self.first_of(after, most)
            return first + self.first_of(bits ^ after, most - len(first))
        found: list[int] = []
        while bits and len(found) < most:
            index = width - bits.bit_length()
            found.append(index)
            bits ^= 1 << (width - 1 - index)
        return found

    def covers(self, other: ChunkSet) -> bool:
        """Return whether every index of ``other`` is in this set."""
        return self.size == other.size and other.as_int() & ~self.as_int() == 0
