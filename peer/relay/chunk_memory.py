"""Verified chunks in memory: those that are not on the disk yet, and the newest of the others.

Chunks that came before their chunk list: they overtook it on another link.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection

from peer.links.neighbours import EncodingKey
from peer.relay.core.events import LinkId
from rollcast.wire.links.frames import ChunkFrame
from rollcast.wire.versions.chunks import BytesLike

# Chunks are passed on within a fraction of a second of their arrival: this much spares nearly all reads.
_KEPT_BYTES_MOST = 32 << 20
# Chunks that wait for the disk: beyond this the links are not read until half of it is stored.
_UNSTORED_BYTES_MOST = 32 << 20


class ChunkMemory:
    """Bounded, whatever the size of a version.

    ``stored`` may be called from another thread than the rest.
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
        """A chunk was verified and is on its way to the disk."""
        with self._lock:
            before = self._unstored.get((key, index), b"")
            self._unstored[key, index] = payload
            self._unstored_bytes += len(payload) - len(before)

    def stored(self, key: EncodingKey, index: int) -> None:
        """A chunk is on the disk, or never will be."""
        with self._lock:
            payload = self._unstored.pop((key, index), None)
            if payload is None:
                return
            self._unstored_bytes -= len(payload)
            self._kept_bytes += len(payload) - len(self._kept.pop((key, index), b""))
            self._kept[key, index] = payload
            while self._kept_bytes > self._kept_bytes_most:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def forget(self, keys: Collection[EncodingKey]) -> None:
        """These were removed from the disk: nobody is given their chunks any more."""
        with self._lock:
            for key, index in [one for one in self._kept if one[0] in keys]:
                self._kept_bytes -= len(self._kept.pop((key, index)))

    def get(self, key: EncodingKey, index: int) -> BytesLike | None:
        """A chunk's bytes, if they are here."""
        return self._unstored.get((key, index)) or self._kept.get((key, index))

    @property
    def full(self) -> bool:
        """Whether links should not be read now: the disk is behind."""
        limit = self._unstored_bytes_most // 2 if self._full else self._unstored_bytes_most
        self._full = self._unstored_bytes > limit
        return self._full


_BYTES_MOST = 4 << 20
_KEPT_S = 5.0


class EarlyChunks:
    """Keeps a few, briefly; what is dropped is asked for later like any other late chunk."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[float, LinkId, ChunkFrame]] = deque()
        self._bytes = 0

    def keep(self, link: LinkId, frame: ChunkFrame, now: float) -> None:
        """Keep a chunk, at the expense of the oldest."""
        self._chunks.append((now, link, frame))
        self._bytes += len(frame.payload)
        while self._bytes > _BYTES_MOST or self._chunks[0][0] < now - _KEPT_S:
            self._bytes -= len(self._chunks.popleft()[2].payload)

    def take(self, key: EncodingKey) -> list[tuple[LinkId, ChunkFrame]]:
        """The chunks of an encoding, in the order in which they came; they are kept no longer."""
        mine = [(link, frame) for _, link, frame in self._chunks if _key(frame) == key]
        if mine:
            self._chunks = deque(one for one in self._chunks if _key(one[2]) != key)
            self._bytes = sum(len(frame.payload) for _, _, frame in self._chunks)
        return mine


def _key(frame: ChunkFrame) -> EncodingKey:
    return EncodingKey(frame.version, frame.encoding_id)
