"""Disk work of the relay, in order and off the event loop, and the chunks that wait for it in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from peer.links.neighbours import EncodingKey
from peer.mirrors.publish import MirrorFolder
from peer.relay.chunk_memory import ChunkMemory
from peer.relay.core.events import Event, StoreFailed, StoreReady, VersionFinished, VersionRestored
from rollcast.runtime.errors import CorruptChunk, RollcastError, StoreError
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.records import KEYFRAME_ID, Manifest, VerifiedVersion
from rollcast.wire.versions.stored_encoding import StoredEncoding

log = structlog.get_logger()

# A visit to the thread costs more than the write of a small chunk: writes wait this long for others.
_GATHER_S = 0.02
_JOBS_PER_VISIT = 256
_READING_THREADS = 2
# Of hashing and of making states, between two visits: chunks that come meanwhile wait this long at most.
_ADVANCE_BYTES = 4 << 20
# What can wait begins when nothing else was asked for this long: loading the version that has just come goes first.
_IDLE_S = 1.0
# It waits no longer than this, however busy we are.
_WAITS_S_MOST = 10.0

Job = Callable[[], "StoreEvent | None"]


@dataclass(frozen=True, slots=True)
class StateMade:
    """A state was made of a delta and hashes to its record; its keyframe can be served after VersionRestored."""

    key: EncodingKey


@dataclass(frozen=True, slots=True)
class StateNotMade:
    """A delta gave other bytes than were signed, or cannot be decoded."""

    key: EncodingKey
    reason: str


@dataclass(frozen=True, slots=True)
class EncodingsRemoved:
    """Retention removed these from the store."""

    keys: tuple[EncodingKey, ...]


@dataclass(frozen=True, slots=True)
class _Later:
    """A job that makes a keyframe ready to be served, at this time of the loop at the latest."""

    due_s: float
    key: EncodingKey
    job: Job


StoreEvent = Event | StateMade | StateNotMade | EncodingsRemoved


class StoreWorker:
    """Carries out store actions one after the other and answers each with its event.

    The queue is bounded by the bytes of chunks in it: ``memory`` says when links should pause.

    Args:
        durable_first: say that an encoding is finished only once it is durable. Without, as soon as it is verified:
            what a peer loses it receives again.
        on_event: called on the event loop.
        idle_s: after this long with nothing to do, what can wait is done.
        mirror_folder: gets what is finished.
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
        self._later: deque[_Later] = deque()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()  # more than writes are to be done
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="relay-store")
        self._reading = ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="relay-read")

    # ------------------------------------------------------------ what can be asked for

    def begin(self, key: EncodingKey, verified: VerifiedVersion, manifest: Manifest, chunk_list: bytes) -> None:
        """Answered by StoreReady or StoreFailed."""

        def job() -> Event:
            encoding = self._store.begin(verified, manifest, chunk_list)
            base = manifest.base_version
            if manifest.kind == "delta" and base is not None and self._holds_state(base):
                self._store.prepare(encoding)
            return StoreReady(key, bytes(encoding.have))

        self._post(key, job)

    def write(self, key: EncodingKey, index: ChunkIndex, payload: BytesLike) -> None:
        """Store a verified chunk; until then it is read from memory. Only a failure is answered: by StoreFailed."""
        self.memory.keep(key, index, payload)

        def job() -> None:
            self._encoding(key).write_verified(index, payload)

        self._post(key, job, (key, index))

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

    def materialise(self, key: EncodingKey) -> None:
        """Make the state that a delta leads to; answered by StateMade, or by StateNotMade.

        VersionRestored follows a while later: that the keyframe can be served is less urgent until somebody asks.
        """
        keyframe_key = EncodingKey(key.version, KEYFRAME_ID)

        def make() -> StoreEvent | None:
            try:
                keyframe = self._store.materialise(self._encoding(key))
            except CorruptChunk as error:
                return StateNotMade(key, str(error))
            if self._durable_first:
                keyframe.finish()
            return StateMade(key)

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
        self._later.append(_Later(due_s, keyframe_key, lambda: self._guarded(key, serve, None)))

    def list_chunks(self, key: EncodingKey) -> None:
        """The keyframe of a state that was made is asked for: have it ready now. Answered by VersionRestored, once."""
        for later in [one for one in self._later if one.key == key]:
            self._later.remove(later)
            self._jobs.append(later.job)
            self._wake.set()
            self._urgent.set()

    def prune(self, spared: frozenset[EncodingKey] = frozenset()) -> None:
        """Apply retention; answered by EncodingsRemoved if anything went.

        Args:
            spared: see ChunkStore.prune.
        """

        def job() -> EncodingsRemoved | None:
            removed = self._store.prune({(key.version, key.encoding_id) for key in spared})
            return EncodingsRemoved(tuple(EncodingKey(*one) for one in removed)) if removed else None

        self._post(None, job)

    def discard(self, key: EncodingKey) -> None:
        """Give the space of an abandoned encoding back."""

        def job() -> None:
            self._store.discard_encoding(key.version, key.encoding_id)

        self._post(None, job)

    async def read(self, key: EncodingKey, index: ChunkIndex) -> bytes | None:
        """A chunk's verified bytes from the disk; None when it is no longer here or the disk changed it."""
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
        """Wait for the job under way, forget the others."""
        self._jobs.clear()
        self._later.clear()
        self._writing.shutdown(wait=True, cancel_futures=True)
        self._reading.shutdown(wait=True, cancel_futures=True)

    async def _wait(self) -> None:
        """For something to do, and a little for more of it; after a while without, what can wait is taken up."""
        try:
            async with asyncio.timeout(self._idle_s if self._later else None):
                await self._wake.wait()
        except TimeoutError:
            self._take_up_later()
        else:
            await self._gather()

    def _take_up_later(self) -> None:
        self._jobs.append(self._later.popleft().job)

    async def _gather(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_S):
                await self._urgent.wait()

    def _visit(self, jobs: deque[Job]) -> tuple[StoreEvent | None, bool]:
        """Do jobs in the thread up to the first that has an answer, which must not wait for those behind it; if none
        has, a little of what will have to be done anyway.
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
            log.info("work ahead of time failed", reason=str(error))  # what it was for will fail with its own event
            return False
        except Exception:
            log.exception("work ahead of time failed")
            return False

    def _post(self, key: EncodingKey | None, job: Job, stored: tuple[EncodingKey, ChunkIndex] | None = None) -> None:
        self._jobs.append(lambda: self._guarded(key, job, stored))
        self._wake.set()
        if stored is None:
            self._urgent.set()

    def _guarded(
        self, key: EncodingKey | None, job: Job, stored: tuple[EncodingKey, ChunkIndex] | None
    ) -> StoreEvent | None:
        try:
            return job()
        except RollcastError as error:
            log.error("store failed", version=key.version if key else None, code=error.code, reason=str(error))
            return StoreFailed(key, error.cause or error.what, error.fix) if key is not None else None
        except Exception:
            # A bug of ours must not stop the relay in silence: the version fails with its reason.
            log.exception("store failed", version=key.version if key else None)
            return StoreFailed(key, "internal error, see the log") if key is not None else None
        finally:
            if stored is not None:
                self.memory.stored(*stored)

    def _publish(self, encoding: StoredEncoding) -> None:
        if self._mirror_folder is None:
            return
        try:
            self._mirror_folder.publish(encoding)
        except StoreError as error:
            log.error("cannot publish to the mirror folder", version=encoding.version, reason=str(error))

    def _holds_state(self, version: int) -> bool:
        base = self._store.get(version)
        return base is not None and base.state_held

    def _made(self, key: EncodingKey) -> StoredEncoding | None:
        """The keyframe of a version whose state was made; None when it could not be, or was removed since."""
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
    """The store's finished encodings that this run's learner signed; other versions are removed.

    They would stand in the way of this run's: a lower number counts as old, an equal one as a second record.

    Raises:
        StoreError: the disk refuses.
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
