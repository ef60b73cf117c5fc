"""Keep chunks in memory: verified ones until they are stored and a little longer, early ones until their list comes."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.events import LinkId
from rollcast.wire.links.frames import ChunkFrame
from rollcast.wire.versions.chunks import BytesLike

# Chunks are forwarded within a fraction of a second of their arrival: with this much, few are read from the disk.
_KEPT_BYTES_MOST = 32 << 20
# If more than this waits for the disk, the links are not read until half of it is stored.
_UNSTORED_BYTES_MOST = 32 << 20


class ChunkMemory:
    """Holds verified chunks: all that are not stored yet, and the newest of the others, within bounds of bytes.

    ``stored`` and ``count`` may be called from another thread than the other methods.
    """

    def __init__(
        self, kept_bytes_most: int = _KEPT_BYTES_MOST, unstored_bytes_most: int = _UNSTORED_BYTES_MOST
    ) -> None:
        self._kept_bytes_most = kept_bytes_most
        self._unstored_bytes_most = unstored_bytes_most
        self._unstored: dict[tuple[EncodingKey, int], BytesLike] = {}
        self._unstored_bytes = 0
        self._kept: OrderedDict[tuple[EncodingKey, int], BytesLike] = OrderedDict()
        self._kept_bytes = 0
        self._full = False
        self._lock = threading.Lock()

    def keep(self, key: EncodingKey, index: int, payload: BytesLike) -> None:
        """Hold a verified chunk that is being written to the disk."""
        with self._lock:
            before = self._unstored.get((key, index), b"")
            self._unstored[key, index] = payload
            self._unstored_bytes += len(payload) - len(before)

    def stored(self, key: EncodingKey, indices: Iterable[int]) -> None:
        """Note that chunks are on the disk, or that writing them failed; they may be dropped from now on."""
        with self._lock:
            for index in indices:
                payload = self._unstored.pop((key, index), None)
                if payload is None:
                    continue
                self._unstored_bytes -= len(payload)
                self._kept_bytes += len(payload) - len(self._kept.pop((key, index), b""))
                self._kept[key, index] = payload
            while self._kept_bytes > self._kept_bytes_most:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def count(self, size_bytes: int) -> None:
        """Count bytes that wait for the disk and cannot be read here; fewer once they are on the disk."""
        with self._lock:
            self._unstored_bytes += size_bytes

    def discard(self, keys: Collection[EncodingKey]) -> None:
        """Discard the chunks of encodings that were removed from the disk: they are no longer served."""
        with self._lock:
            for key, index in [one for one in self._kept if one[0] in keys]:
                self._kept_bytes -= len(self._kept.pop((key, index)))

    def get(self, key: EncodingKey, index: int) -> BytesLike | None:
        """Return a chunk's bytes; None if they are not in memory."""
        return self._unstored.get((key, index)) or self._kept.get((key, index))

    @property
    def full(self) -> bool:
        """Return whether links should not be read now, because the disk is behind."""
        limit = self._unstored_bytes_most // 2 if self._full else self._unstored_bytes_most
        self._full = self._unstored_bytes > limit
        return self._full


# Bounds of early chunks: a chunk list is late by a few round trips, and what is dropped is requested again anyway.
_BYTES_MOST = 4 << 20
_KEPT_S = 5.0


class EarlyChunks:
    """Keeps a few chunks that overtook their chunk list on another link; those dropped are requested as late chunks."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[float, LinkId, ChunkFrame]] = deque()
        self._bytes = 0

    def keep(self, link: LinkId, frame: ChunkFrame, now: float) -> None:
        """Keep a chunk; the oldest ones are dropped to make room."""
        self._chunks.append((now, link, frame))
        self._bytes += len(frame.payload)
        while self._bytes > _BYTES_MOST or self._chunks[0][0] < now - _KEPT_S:
            self._bytes -= len(self._chunks.popleft()[2].payload)

    def take(self, key: EncodingKey) -> list[tuple[LinkId, ChunkFrame]]:
        """Remove the chunks of an encoding and return them in the order in which they came."""
        mine = [(link, frame) for _, link, frame in self._chunks if _key(frame) == key]
        if mine:
            self._chunks = deque(one for one in self._chunks if _key(one[2]) != key)
            self._bytes = sum(len(frame.payload) for _, _, frame in self._chunks)
        return mine


def _key(frame: ChunkFrame) -> EncodingKey:
    return EncodingKey(frame.version, frame.encoding_id)
