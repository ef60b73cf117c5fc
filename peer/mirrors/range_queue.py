"""Queue requested chunks of a source that is read by byte ranges, join them to ranges, and cut ranges into chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peer.links.neighbours import EncodingKey
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.records import Manifest


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """Adjacent chunks [first, last] of one encoding: bytes [start, stop)."""

    key: EncodingKey
    first: int
    last: int
    start_bytes: int
    stop_bytes: int


class RangeQueue:
    """Orders requests: newest version first, adjacent chunks in one range; a chunk requested twice is read once.

    Args:
        range_bytes_most: bytes of one range at most, unless a single chunk is longer.
    """

    def __init__(self, range_bytes_most: int) -> None:
        self._range_bytes_most = range_bytes_most
        self._manifests: dict[EncodingKey, Manifest] = {}
        self._waiting: dict[EncodingKey, set[int]] = {}
        self._reading: dict[EncodingKey, set[int]] = {}

    def __len__(self) -> int:
        """Return the number of chunks that wait to be read."""
        return sum(map(len, self._waiting.values()))

    def add(self, key: EncodingKey, manifest: Manifest, indices: Iterable[int]) -> None:
        """Request chunks, all of them below the manifest's chunk count."""
        self._manifests[key] = manifest
        wanted = set(indices) - self._reading.get(key, set())
        if wanted:
            self._waiting.setdefault(key, set()).update(wanted)

    def take(self) -> ChunkRange | None:
        """Return the range to read next, None if there is none; it is being read until ``arrived`` or ``put_back``."""
        if not self._waiting:
            return None
        key = max(self._waiting)
        manifest, waiting = self._manifests[key], self._waiting[key]
        first = last = min(waiting)
        start, stop = manifest.chunk_range(first)
        while last + 1 in waiting and manifest.chunk_range(last + 1)[1] - start <= self._range_bytes_most:
            last += 1
            stop = manifest.chunk_range(last)[1]
        taken = set(range(first, last + 1))
        waiting -= taken
        if not waiting:
            del self._waiting[key]
        self._reading.setdefault(key, set()).update(taken)
        return ChunkRange(key, first, last, start, stop)

    def arrived(self, key: EncodingKey, index: int) -> bool:
        """Remove a chunk that was read; return whether it was still requested."""
        reading = self._reading.get(key, set())
        if index not in reading:
            return False
        reading.remove(index)
        if not reading:
            del self._reading[key]
        return True

    def is_asked(self, part: ChunkRange) -> bool:
        """Return whether a chunk of a range that is being read is still requested."""
        return not self._reading.get(part.key, set()).isdisjoint(range(part.first, part.last + 1))

    def put_back(self, part: ChunkRange) -> None:
        """Queue the chunks of a range again that were not read and are still requested."""
        missing = {index for index in range(part.first, part.last + 1) if self.arrived(part.key, index)}
        if missing:
            self.add(part.key, self._manifests[part.key], missing)

    def drop(self, key: EncodingKey) -> None:
        """Drop all requests for an encoding."""
        for table in (self._manifests, self._waiting, self._reading):
            table.pop(key, None)


class ChunkCutter:
    """Turns the bytes of a range, as they come, into its chunks."""

    def __init__(self, part: ChunkRange, manifest: Manifest) -> None:
        self._manifest = manifest
        self._last = part.last
        self._index = part.first
        self._chunk = bytearray()

    def feed(self, data: BytesLike) -> list[tuple[ChunkIndex, memoryview]]:
        """Return the chunks that ``data`` completes, each in memory of its own; drop bytes beyond the range."""
        view = memoryview(data)
        chunks = []
        while view and self._index <= self._last:
            start, stop = self._manifest.chunk_range(self._index)
            missing = stop - start - len(self._chunk)
            self._chunk += view[:missing]
            view = view[missing:]
            if len(self._chunk) == stop - start:
                chunks.append((ChunkIndex(self._index), memoryview(self._chunk).toreadonly()))
                self._chunk = bytearray()
                self._index += 1
        return chunks

    @property
    def done(self) -> bool:
        """Return whether every chunk of the range is complete."""
        return self._index > self._last
