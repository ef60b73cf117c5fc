"""Hashing and disk work of the relay, in order and off the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from peer.relay_events import (
    ChunkCorrupt,
    ChunkStored,
    EncodingKey,
    Event,
    LinkId,
    StoreFailed,
    StoreReady,
    VersionFinished,
    VersionsRemoved,
)
from rollcast.runtime.errors import CorruptChunk, RollcastError, StoreError
from rollcast.wire.chunk_store import ChunkStore
from rollcast.wire.chunks import BytesLike
from rollcast.wire.ids import ChunkIndex, EncodingId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.records import Manifest, VerifiedVersion
from rollcast.wire.stored_encoding import StoredEncoding

log = structlog.get_logger()

# Jobs of one visit to the thread: enough to hide the hop, few enough that children do not wait for their chunks.
_JOBS_PER_VISIT = 8
_READING_THREADS = 2

Job = Callable[[], Event | None]


class StoreWorker:
    """Carries out the core's store actions one after the other and answers each with its event.

    The queue needs no bound of its own: it holds at most the chunks that links have credit for.

    Args:
        on_event: called on the event loop.
    """

    def __init__(self, store: ChunkStore, on_event: Callable[[Event], None]) -> None:
        self._store = store
        self._on_event = on_event
        self._jobs: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="relay-store")
        self._reading = ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="relay-read")

    # ------------------------------------------------------------ what can be asked for

    def begin(self, key: EncodingKey, verified: VerifiedVersion, manifest: Manifest, chunk_list: bytes) -> None:
        """Answered by StoreReady or StoreFailed."""

        def job() -> Event:
            encoding = self._store.begin(verified, manifest, chunk_list)
            return StoreReady(key, bytes(encoding.have))

        self._post(key, job)

    def write(self, link: LinkId, key: EncodingKey, index: ChunkIndex, payload: BytesLike) -> None:
        """Verify, then store; answered by ChunkStored, ChunkCorrupt or StoreFailed."""

        def job() -> Event:
            try:
                self._encoding(key).write(index, payload)
            except CorruptChunk:
                return ChunkCorrupt(link, key, index)
            return ChunkStored(link, key, index, len(payload))

        self._post(key, job, link)

    def finish(self, key: EncodingKey) -> None:
        """Check the state's hash, make it durable; answered by VersionFinished or StoreFailed."""

        def job() -> Event:
            encoding = self._encoding(key)
            encoding.verify_state()
            encoding.finish()
            return VersionFinished(key)

        self._post(key, job)

    def prune(self) -> None:
        """Apply retention; answered by VersionsRemoved if anything went."""

        def job() -> Event | None:
            removed = self._store.prune()
            return VersionsRemoved(tuple(_keyframe(version) for version in removed)) if removed else None

        self._post(None, job)

    def discard(self, key: EncodingKey) -> None:
        """Give the space of an abandoned version back."""

        def job() -> None:
            self._store.discard(key.version)

        self._post(None, job)

    async def read(self, key: EncodingKey, index: ChunkIndex) -> bytes | None:
        """A chunk's verified bytes; None when it is no longer here or the disk changed it."""
        encoding = self._store.get(key.version, key.encoding_id)
        if encoding is None:
            return None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reading, encoding.read, index)
        except RollcastError as error:
            log.error("chunk cannot be read", version=key.version, index=index, reason=str(error))
            return None

    # ------------------------------------------------------------ the work

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            while self._jobs:
                batch = [self._jobs.popleft() for _ in range(min(len(self._jobs), _JOBS_PER_VISIT))]
                for event in await loop.run_in_executor(self._writing, _do_all, batch):
                    if event is not None:
                        self._on_event(event)
            self._wake.clear()
            await self._wake.wait()

    def close(self) -> None:
        """Wait for the job under way, forget the others."""
        self._jobs.clear()
        self._writing.shutdown(wait=True, cancel_futures=True)
        self._reading.shutdown(wait=True, cancel_futures=True)

    def _post(self, key: EncodingKey | None, job: Job, link: LinkId | None = None) -> None:
        self._jobs.append(lambda: _guarded(key, job, link))
        self._wake.set()

    def _encoding(self, key: EncodingKey) -> StoredEncoding:
        encoding = self._store.get(key.version, key.encoding_id)
        if encoding is None:
            raise StoreError(f"version {key.version} is no longer kept here")
        return encoding


def keep_verified(
    store: ChunkStore, verify: Callable[[pb.VersionAnnouncement], VerifiedVersion]
) -> list[StoredEncoding]:
    """The store's keyframes that this run's learner signed; other versions are removed.

    They would stand in the way of this run's: a lower number counts as old, an equal one as a second record.

    Raises:
        StoreError: the disk refuses.
    """
    ours = []
    for version in store.versions():
        stored = store.get(version)
        if stored is None or not stored.finished:
            continue
        try:
            verify(stored.verified.announcement)
        except RollcastError as error:
            log.warning("stored version removed", version=version, reason=error.what)
            store.discard(version)
        else:
            ours.append(stored)
    return ours


def _do_all(jobs: list[Job]) -> list[Event | None]:
    return [job() for job in jobs]


def _guarded(key: EncodingKey | None, job: Job, link: LinkId | None) -> Event | None:
    try:
        return job()
    except RollcastError as error:
        log.error("store failed", version=key.version if key else None, code=error.code, reason=str(error))
        return StoreFailed(key, error.cause or error.what, error.fix, link) if key is not None else None
    except Exception:
        # A bug of ours must not stop the relay in silence: the version fails with its reason.
        log.exception("store failed", version=key.version if key else None)
        return StoreFailed(key, "internal error, see the log", link=link) if key is not None else None


def _keyframe(version: Version) -> EncodingKey:
    return EncodingKey(version, EncodingId(0))
