"""Do the relay's disk work in order and off the event loop, and keep the chunks that wait for it in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import structlog

from peer.links.neighbours import EncodingKey
from peer.mirrors.publish import MirrorFolder
from peer.relay.chunk_memory import ChunkMemory
from peer.relay.core.state.events import Event, StoreFailed, StoreReady, VersionFinished, VersionRestored
from peer.relay.draft_file import DraftFile
from peer.relay.read_ahead import ReadAhead
from rollcast.runtime.errors import CorruptChunk, RollcastError, StoreError
from rollcast.wire.ids import ChunkIndex, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.records import KEYFRAME_ID, Manifest, VerifiedVersion
from rollcast.wire.versions.stored_encoding import StoredEncoding

log = structlog.get_logger()

# A visit to the thread costs more than the write of a small chunk, so writes wait this long for others.
_GATHER_S = 0.02
_JOBS_PER_VISIT = 256
# Chunks written by one job: other jobs wait no longer than that takes.
_WRITE_BYTES_MOST = 4 << 20
_READING_THREADS = 2
# Bytes of states hashed or computed between two visits: chunks that come meanwhile wait no longer than that takes.
_ADVANCE_BYTES = 4 << 20
# Deferred jobs begin after this long without other work: loading the version that has just come goes first.
_IDLE_S = 1.0
# Deferred jobs wait no longer than this, however busy the store is.
_WAITS_S_MOST = 10.0

Job = Callable[[], "StoreEvent | None"]


@dataclass(frozen=True, slots=True)
class StateMade:
    """A state was computed from a delta and matches its record's hash; its keyframe is served after VersionRestored.

    Args:
        base_taken: the base's keyframe if its memory has become this state's, so that it is no longer held.
    """

    key: EncodingKey
    base_taken: EncodingKey | None = None


@dataclass(frozen=True, slots=True)
class StateNotMade:
    """A delta gave other bytes than were signed, or cannot be decoded."""

    key: EncodingKey
    reason: str
    base_taken: EncodingKey | None = None  # see StateMade


@dataclass(frozen=True, slots=True)
class EncodingsRemoved:
    """Retention removed encodings from the store."""

    keys: tuple[EncodingKey, ...]


@dataclass(frozen=True, slots=True)
class _Later:
    """A deferred job that makes a keyframe ready to be served; it is due at ``due_s`` of the loop's time."""

    due_s: float
    key: EncodingKey
    job: Job


StoreEvent = Event | StateMade | StateNotMade | EncodingsRemoved


class _Writes:
    """Verified chunks of one encoding that are written by one job."""

    def __init__(self, key: EncodingKey) -> None:
        self.key = key
        self.chunks: dict[int, BytesLike] = {}
        self._size_bytes = 0

    def takes(self, key: EncodingKey, payload: BytesLike) -> bool:
        """Return whether another chunk may be added."""
        return key == self.key and self._size_bytes + len(payload) <= _WRITE_BYTES_MOST

    def add(self, index: int, payload: BytesLike) -> None:
        """Add a chunk."""
        self.chunks[index] = payload
        self._size_bytes += len(payload)

    def runs(self) -> Iterator[tuple[int, list[BytesLike]]]:
        """Yield the first index and the bytes of each run of consecutive chunks."""
        ordered = sorted(self.chunks)
        for _, places in groupby(enumerate(ordered), lambda one: one[1] - one[0]):
            indices = [index for _, index in places]
            yield indices[0], [self.chunks[index] for index in indices]


class StoreWorker:
    """Carries out store actions one after the other and answers each with its event.

    The queue is bounded by the bytes of chunks in it: ``memory.full`` is true while links should pause.

    Args:
        durable_first: whether an encoding counts as finished only once it is durable. Otherwise it does as soon as it
            is verified: a peer that loses it receives it again.
        on_event: called on the event loop.
        idle_s: deferred jobs begin after this long without other work.
        mirror_folder: gets the finished encodings; None: there is none.
    """

    def __init__(
        self,
        store: ChunkStore,
        on_event: Callable[[StoreEvent], None],
        *,
        durable_first: bool,
        idle_s: float = _IDLE_S,
        mirror_folder: MirrorFolder | None = None,
    ) -> None:
        self.memory = ChunkMemory()
        self._store = store
        self._on_event = on_event
        self._durable_first = durable_first
        self._idle_s = idle_s
        self._mirror_folder = mirror_folder
        self._jobs: deque[Job] = deque()
        self._last_write: tuple[Job, _Writes] | None = None
        self._later: deque[_Later] = deque()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()  # set if a job other than a write is queued
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="relay-store")
        self._reading = ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="relay-read")
        self.ahead = ReadAhead(store, self._reading)
        """The chunks read from the disk to be sent."""

    # ------------------------------------------------------------ what can be asked for

    def begin(
        self,
        key: EncodingKey,
        verified: VerifiedVersion,
        manifest: Manifest,
        chunk_list: bytes,
        draft: DraftFile | None = None,
    ) -> None:
        """Open an encoding in the store; answered by StoreReady or StoreFailed.

        Args:
            draft: the file of a draft of it, of which the store takes over what matches the chunk list.
        """

        def job() -> Event:
            found = None if draft is None else draft.take(manifest, chunk_list)
            encoding = self._store.begin(verified, manifest, chunk_list, found)
            base = manifest.base_version
            if manifest.kind == "delta" and base is not None and self._holds_state(base):
                self._store.prepare(encoding)
            return StoreReady(key, bytes(encoding.have))

        self._post(key, job)

    def append_draft(self, draft: DraftFile, payload: BytesLike) -> None:
        """Write the next chunk of a draft, which counts as waiting for the disk until then."""
        self.memory.count(len(payload))

        def job() -> None:
            try:
                draft.append(payload)
            finally:
                self.memory.count(-len(payload))

        self._jobs.append(partial(self._guarded, None, job))
        self._wake.set()

    def discard_draft(self, draft: DraftFile) -> None:
        """Delete the file of a draft."""
        self._post(None, draft.discard)

    def announced(self, version: Version) -> None:
        """Apply what is here of a delta to this version, or an older one, without waiting for the rest."""
        self._store.announced = max(self._store.announced, version)
        self._wake.set()

    def write(self, key: EncodingKey, index: ChunkIndex, payload: BytesLike) -> None:
        """Store a verified chunk, which is read from memory until then. Only a failure is answered, by StoreFailed.

        Chunks of one encoding that wait are written together, consecutive ones in one call of the system.
        """
        self.memory.keep(key, index, payload)
        self._open_writes(key, payload).add(index, payload)

    def _open_writes(self, key: EncodingKey, payload: BytesLike) -> _Writes:
        """Return what the last job in the queue writes if the chunk may be added to it, or else that of a new job."""
        if self._last_write is not None:
            job, writes = self._last_write
            if self._jobs and self._jobs[-1] is job and writes.takes(key, payload):
                return writes
        writes = _Writes(key)
        job = partial(self._guarded, key, partial(self._write, writes))
        self._last_write = job, writes
        self._jobs.append(job)
        self._wake.set()
        return writes

    def _write(self, writes: _Writes) -> None:
        try:
            encoding = self._encoding(writes.key)
            for first, chunks in writes.runs():
                encoding.write_verified(first, chunks)
                encoding.hash_written(first, chunks)
        finally:
            self.memory.stored(writes.key, writes.chunks)

    def finish(self, key: EncodingKey) -> None:
        """Check the state's hash and make the encoding durable; answered by VersionFinished or StoreFailed."""

        def verify() -> Event | None:
            encoding = self._encoding(key)
            if encoding.manifest.kind == "keyframe":
                encoding.verify_state()
            return None if self._durable_first else VersionFinished(key)

        def finish() -> Event | None:
            encoding = self._encoding(key)
            if encoding.manifest.kind == "keyframe" and not encoding.state_held:
                return None  # its check has failed: it must never be visible as complete
            encoding.finish()
            return VersionFinished(key) if self._durable_first else None

        def publish() -> None:
            encoding = self._encoding(key)
            if encoding.finished:
                self._publish(encoding)

        self._post(key, verify)
        self._post(key, finish)
        if self._mirror_folder is not None:
            self._post(None, publish)

    def materialise(self, key: EncodingKey, spared: frozenset[EncodingKey] = frozenset()) -> None:
        """Compute the state that a delta leads to; answered by StateMade or StateNotMade.

        VersionRestored follows later: serving the keyframe is not urgent until a peer asks for it.

        Args:
            spared: keyframes that peers fetch; their states are not changed in place.
        """
        keyframe_key = EncodingKey(key.version, KEYFRAME_ID)

        def make() -> StoreEvent | None:
            delta = self._encoding(key)
            base = EncodingKey(delta.manifest.base_version or Version(0), KEYFRAME_ID)
            try:
                keyframe = self._store.materialise(delta, keep_base=base in spared)
            except (CorruptChunk, StoreError) as error:
                taken = None if self._holds_state(base.version) else base
                if isinstance(error, CorruptChunk) or taken is not None:
                    return StateNotMade(key, str(error), taken)
                raise
            if self._durable_first:
                keyframe.finish()
            return StateMade(key, None if self._holds_state(base.version) else base)

        def finish() -> None:
            if (keyframe := self._made(key)) is not None:
                keyframe.finish()

        def serve() -> Event | None:
            keyframe = self._made(key)
            if keyframe is None or not keyframe.finished:
                return None
            keyframe.list_chunks()
            self._publish(keyframe)
            manifest = keyframe.manifest
            return VersionRestored(keyframe_key, manifest.chunk_count, manifest.chunk_size_bytes)

        self._post(key, make)
        self._post(key, finish)
        due_s = asyncio.get_running_loop().time() + _WAITS_S_MOST
        self._later.append(_Later(due_s, keyframe_key, lambda: self._guarded(key, serve)))

    def list_chunks(self, key: EncodingKey) -> None:
        """Cut up the keyframe of a computed state now, because a peer asks for it; answered once by VersionRestored."""
        for later in [one for one in self._later if one.key == key]:
            self._later.remove(later)
            self._jobs.append(later.job)
            self._wake.set()
            self._urgent.set()

    def prune(self, spared: frozenset[EncodingKey] = frozenset()) -> None:
        """Apply retention; answered by EncodingsRemoved if it removed any encoding.

        Args:
            spared: see ChunkStore.prune.
        """

        def job() -> EncodingsRemoved | None:
            removed = self._store.prune({(key.version, key.encoding_id) for key in spared})
            return EncodingsRemoved(tuple(EncodingKey(*one) for one in removed)) if removed else None

        self._post(None, job)

    def discard(self, key: EncodingKey) -> None:
        """Delete an abandoned encoding from the disk."""

        def job() -> None:
            self._store.discard_encoding(key.version, key.encoding_id)

        self._post(None, job)

    # ------------------------------------------------------------ the work

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self._urgent.clear()
            if self._later and self._later[0].due_s <= loop.time():
                self._take_up_later()
            batch = deque(self._jobs.popleft() for _ in range(min(len(self._jobs), _JOBS_PER_VISIT)))
            event, more = await loop.run_in_executor(self._writing, self._visit, batch)
            self._jobs.extendleft(reversed(batch))
            if event is not None:
                self._on_event(event)
            if not self._jobs and not more:
                await self._wait()

    def close(self) -> None:
        """Wait for the running job and discard the others."""
        self._jobs.clear()
        self._later.clear()
        self._writing.shutdown(wait=True, cancel_futures=True)
        self._reading.shutdown(wait=True, cancel_futures=True)

    async def _wait(self) -> None:
        """Wait for a job and shortly for further ones; take up a deferred job if none comes for ``idle_s`` seconds."""
        try:
            async with asyncio.timeout(self._idle_s if self._later else None):
                await self._wake.wait()
        except TimeoutError:
            self._take_up_later()
        else:
            await self._gather()

    def _take_up_later(self) -> None:
        later = self._later.popleft()
        keyframe = self._store.get(later.key.version)
        if keyframe is not None and keyframe.changing:  # reading it would undo what the next delta has changed
            due_s = asyncio.get_running_loop().time() + _WAITS_S_MOST
            self._later.append(replace(later, due_s=due_s))
        else:
            self._jobs.append(later.job)

    async def _gather(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_S):
                await self._urgent.wait()

    def _visit(self, jobs: deque[Job]) -> tuple[StoreEvent | None, bool]:
        """Run jobs in the thread up to the first that has an answer, which must not wait for the jobs behind it.

        If none has an answer, do a share of the hashing or computing that will be needed anyway.

        Returns:
            The answer, or None, and whether more is to be done.
        """
        while jobs:
            event = jobs.popleft()()
            if event is not None:
                return event, True
        return None, self._advance()

    def _advance(self) -> bool:
        try:
            return self._store.advance(_ADVANCE_BYTES)
        except RollcastError as error:
            log.info("deferred work of the store failed", reason=str(error))  # what needs it fails with its own event
            return False
        except Exception:
            log.exception("deferred work of the store failed")
            return False

    def _post(self, key: EncodingKey | None, job: Job) -> None:
        self._jobs.append(lambda: self._guarded(key, job))
        self._wake.set()
        self._urgent.set()

    def _guarded(self, key: EncodingKey | None, job: Job) -> StoreEvent | None:
        try:
            return job()
        except RollcastError as error:
            log.error("store failed", version=key.version if key else None, code=error.code, reason=str(error))
            return StoreFailed(key, error.cause or error.what, error.fix) if key is not None else None
        except Exception:
            # A bug here must not stop the relay silently: the version fails with this reason.
            log.exception("store failed", version=key.version if key else None)
            return StoreFailed(key, "internal error, see the log") if key is not None else None

    def _publish(self, encoding: StoredEncoding) -> None:
        folder, base = self._mirror_folder, encoding.verified.base
        if folder is None:
            return
        if base is not None and not folder.has(base.version):
            stored = self._store.get(base.version)
            if stored is not None and stored.finished and stored.listed:
                self._publish(stored)
        try:
            folder.publish(encoding)
        except StoreError as error:
            log.error("cannot publish to the mirror folder", version=encoding.version, reason=str(error))

    def _holds_state(self, version: int) -> bool:
        base = self._store.get(version)
        return base is not None and base.state_held

    def _made(self, key: EncodingKey) -> StoredEncoding | None:
        """Return the keyframe of a version whose state was computed; None if that failed or it was removed since."""
        keyframe = self._store.get(key.version)
        return keyframe if keyframe is not None and keyframe.state_held else None

    def _encoding(self, key: EncodingKey) -> StoredEncoding:
        encoding = self._store.get(key.version, key.encoding_id)
        if encoding is None:
            raise StoreError(f"version {key.version} is no longer kept here")
        return encoding


def keep_verified(
    store: ChunkStore, verify: Callable[[pb.VersionAnnouncement], VerifiedVersion]
) -> list[StoredEncoding]:
    """Return the store's finished encodings that this run's learner signed; remove all other versions.

    Another run's versions would block this run's: a lower number counts as old, an equal one as a second record.

    Raises:
        StoreError: a version cannot be removed from the disk.
    """
    ours = []
    for stored in store.finished():
        try:
            verify(stored.verified.announcement)
        except RollcastError as error:
            log.warning("stored version removed", version=stored.version, reason=error.what)
            store.discard(stored.version)
        else:
            ours.append(stored)
    return ours
