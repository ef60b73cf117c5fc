"""Chunks that came before their chunk list: they overtook it on another link."""

from __future__ import annotations

from collections import deque

from peer.links.neighbours import EncodingKey
from peer.relay.core.events import LinkId
from rollcast.wire.links.frames import ChunkFrame

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
