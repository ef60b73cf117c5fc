"""Read chunks from the disk before they are sent: many at once, because a visit to a thread costs more than a read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from peer.links.neighbours import EncodingKey
from rollcast.runtime.errors import RollcastError
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.links.chunk_buffers import ChunkBuffers
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.stored_encoding import StoredEncoding

log = structlog.get_logger()

# As a file system does, a reader that goes on where it stopped gets twice as much as before, up to this.
_RUN_BYTES_MOST = 4 << 20
# The run that is being sent, the one after it, and one for a peer that is a little behind.
_KEPT_BYTES_MOST = 3 * _RUN_BYTES_MOST


@dataclass(slots=True)
class _Run:
    """Consecutive chunks that are read together; ``read`` is done when they are here, or cannot be read."""

    start: int
    stop: int
    read: asyncio.Future[None]


class ReadAhead:
    """Chunks read from the store, verified. Its methods are called on the event loop.

    Args:
        executor: runs the reads.
    """

    def __init__(self, store: ChunkStore, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._runs: dict[EncodingKey, _Run] = {}  # the newest of each encoding
        self._chunks: OrderedDict[tuple[EncodingKey, int], BytesLike] = OrderedDict()
        self._bytes = 0
        self._buffers = ChunkBuffers(_KEPT_BYTES_MOST + _RUN_BYTES_MOST)

    def get(self, key: EncodingKey, index: int) -> BytesLike | None:
        """Return a chunk that was read before, or None; in the second half of a run the next one is begun."""
        payload = self._chunks.get((key, index))
        run = self._runs.get(key)
        if payload is not None and run is not None and run.read.done() and 2 * index >= run.start + run.stop:
            self._begin(key, run.stop)
        return payload

    async def read(self, key: EncodingKey, index: ChunkIndex) -> BytesLike | None:
        """Return a chunk's verified bytes; None if it is no longer here or its bytes are damaged."""
        run = self._runs.get(key)
        if run is None or not run.start <= index < run.stop or run.read.done():
            run = self._begin(key, index)
        if run is not None:
            await asyncio.shield(run.read)
        return self._chunks.get((key, index))

    def discard(self, keys: Collection[EncodingKey]) -> None:
        """Discard the chunks of encodings that were removed from the disk."""
        for key, index in [one for one in self._chunks if one[0] in keys]:
            self._bytes -= len(self._chunks.pop((key, index)))
        for key in keys:
            self._runs.pop(key, None)

    def _begin(self, key: EncodingKey, start: int) -> _Run | None:
        encoding = self._store.get(key.version, key.encoding_id)
        before = self._runs.get(key)
        if encoding is None or not encoding.has(start):
            return None
        follows = before is not None and before.stop == start
        count = 2 * (before.stop - before.start) if follows and before is not None else 1
        count = max(1, min(count, _RUN_BYTES_MOST // encoding.manifest.chunk_size_bytes))
        stop = start + 1
        while stop < min(start + count, encoding.manifest.chunk_count) and encoding.has(stop):
            stop += 1
        run = _Run(start, stop, asyncio.get_running_loop().create_future())
        self._runs[key] = run
        task = asyncio.get_running_loop().create_task(self._read(key, encoding, run))
        run.read.add_done_callback(lambda _: task)  # the loop itself keeps no strong reference to a task
        return run

    async def _read(self, key: EncodingKey, encoding: StoredEncoding, run: _Run) -> None:
        ranges = [encoding.manifest.chunk_range(index) for index in range(run.start, run.stop)]
        views = [memoryview(self._buffers.take(stop - start)) for start, stop in ranges]
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, encoding.read_into, run.start, views)
            for index, view in enumerate(views, run.start):
                self._keep((key, index), view.toreadonly())
        except RollcastError as error:
            log.error("chunks cannot be read", version=key.version, index=run.start, reason=str(error))
        finally:
            if not run.read.done():
                run.read.set_result(None)

    def _keep(self, place: tuple[EncodingKey, int], payload: BytesLike) -> None:
        self._bytes += len(payload) - len(self._chunks.pop(place, b""))
        self._chunks[place] = payload
        while self._bytes > _KEPT_BYTES_MOST:
            self._bytes -= len(self._chunks.popitem(last=False)[1])
