"""Carry out the actions of the worker's core: load, swap, generate, upload, and feed the results back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any, Protocol, assert_never

import structlog

from peer.engines.base import CompletionSlice, Engine, GenerateRequest, Generation, VersionState
from peer.worker.core.core import WorkerCore
from peer.worker.core.events import (
    Action,
    ActivateVersion,
    ContinueBatch,
    EndBatch,
    Event,
    Finish,
    GenerateBatch,
    LoadVersion,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    RolloutsDropped,
    SendPartials,
    SliceGenerated,
    SliceTokens,
    SlotWork,
    Tick,
    UploadAnswered,
    UploadFailed,
    UploadRollouts,
    Verdict,
    VersionActivated,
    VersionKey,
    VersionLoaded,
    VersionReplaced,
)
from peer.worker.core.running_batch import without_routes
from peer.worker.core.status import Receiving, WorkerStatus
from rollcast.runtime.errors import CorruptChunk, ProcessFailed, RollcastError, StoreError
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.ids import LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import partial_to_pb
from rollcast.wire.rollouts import Rollout, Segment, packed_of, turn_start
from rollcast.wire.token_ids import pack_ids, unpack_ids
from rollcast.wire.version_swap import AtVersionSwap
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash

log = structlog.get_logger()

TICK_MIN_S = 0.001  # between two wakes of the core


#: Called with rollouts that were uploaded and the coordinator's verdicts on them.
Judged = Callable[[tuple[Rollout, ...], tuple[Verdict, ...]], None]


class Uploads(Protocol):
    """Sends finished rollouts to the coordinator (peer.worker.uploads.Uploader)."""

    async def upload(self, rollouts: tuple[Rollout, ...]) -> tuple[Verdict, ...]: ...


class Worker:
    """The shell around WorkerCore. Everything but the engine's own threads happens on one event loop.

    Args:
        judged: called with every upload's rollouts and verdicts.
        damaged: called with a version whose stored state must be received again.
    """

    def __init__(
        self,
        core: WorkerCore,
        *,
        engine: Engine,
        store: ChunkStore,
        uploads: Uploads,
        send: Callable[[pb.PeerMessage], None],
        peer_id: PeerId,
        random: Random,
        judged: Judged = lambda rollouts, verdicts: None,
        damaged: Callable[[Version], None] = lambda version: None,
    ) -> None:
        self._core = core
        self._engine = engine
        self._store = store
        self._uploads = uploads
        self._send = send
        self._peer_id = peer_id
        self._random = random
        self._judged = judged
        self._damaged = damaged
        self._retry_delays = self._delays()
        self._generation: Generation | None = None
        self._work: dict[int, SlotWork] = {}  # the slots that it generates, by the number of the request
        self._requests = 0  # requests that it was given
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def handle(self, event: Event) -> None:
        """Feed an event to the core and begin its actions. Never blocks."""
        loop = asyncio.get_running_loop()
        for action in self._core.handle(event, loop.time()):
            self._perform(action)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        wake_s = self._core.next_wake_s()
        if wake_s is not None:
            self._wake = loop.call_at(max(wake_s, loop.time() + TICK_MIN_S), self.handle, Tick())

    @property
    def held_leases(self) -> list[LeaseId]:
        """Return every lease of which a rollout may still be uploaded."""
        return self._core.held_leases

    def status(self, receiving: Receiving | None) -> WorkerStatus:
        """Return the state and counters for the next heartbeat."""
        status = self._core.status(asyncio.get_running_loop().time(), receiving)
        return replace(status, swap=self._engine.last_swap, placement=self._engine.placement)

    async def run(self) -> str:
        """Wait until the core has drained; return the reason for which it was stopped.

        Raises:
            RollcastError: the engine failed, or a version cannot be used.
        """
        try:
            return await self._ended
        finally:
            if self._wake is not None:
                self._wake.cancel()
            for task in self._tasks:
                task.cancel()
            await self._engine.close()
            log.info("worker ended", accepted=self._core.accepted, dropped=dict(self._core.dropped))

    # ------------------------------------------------------------ actions

    def _perform(self, action: Action) -> None:
        match action:
            case RequestWork(free_slots):
                self._send(pb.PeerMessage(work_request=pb.WorkRequest(free_slots=free_slots)))
            case ReportVersionHeld(key):
                held = pb.VersionHeld(epoch=key.epoch, version=key.version)
                self._send(pb.PeerMessage(version_held=held))
            case ReturnLeases(lease_ids, reason):
                log.info("leases returned", leases=len(lease_ids), reason=reason)
                self._send(pb.PeerMessage(lease_return=pb.LeaseReturn(lease_ids=lease_ids, reason=reason)))
            case RolloutsDropped(reason, count):
                log.info("rollouts dropped", reason=reason, count=count)
            case LoadVersion(key):
                self._begin(self._load(key), f"loading version {key.version}")
            case ActivateVersion(key):
                self._begin(self._activate(key), f"activating version {key.version}")
            case GenerateBatch(batch_id, work, slice_tokens):
                self._begin(self._generate(batch_id, work, slice_tokens), "generating rollouts")
            case ContinueBatch(batch_id, slice_tokens, renew, more):
                self._begin(self._generate_slice(batch_id, slice_tokens, renew, more), "generating rollouts")
            case EndBatch():
                self._generation = None
            case SendPartials(partials):
                for partial in partials:
                    self._send(pb.PeerMessage(partial_rollout=partial_to_pb(partial)))
            case UploadRollouts():
                self._begin(self._upload(action), "uploading rollouts")
            case Finish(reason):
                if not self._ended.done():
                    self._ended.set_result(reason)
            case _:
                assert_never(action)

    def _begin(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        task = asyncio.create_task(work, name=doing)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or self._ended.done():
            return
        if not isinstance(error, RollcastError):
            log.error("worker failed", doing=task.get_name(), exc_info=error)
            error = ProcessFailed(f"this peer failed while {task.get_name()}", cause=repr(error))
        self._ended.set_exception(error)

    async def _load(self, key: VersionKey) -> None:
        with ExitStack() as held:
            try:
                # In a thread: what a delta has changed in the state ahead of time is undone first.
                state = await asyncio.to_thread(self._held_state, key.version, held)
            except StoreError:
                encoding = self._store.get(key.version)
                if encoding is not None and encoding.state_held:
                    raise
                # A delta changes the state in place, and retention may remove it. What takes its place is loaded once
                # it is verified; until then it need not be in the store.
                log.info("version replaced before it was loaded", version=key.version)
                self.handle(VersionReplaced(key))
                return
            loaded_hash = await self._engine.load(state)
        record = state.record
        if loaded_hash != record.state_hash:
            if await asyncio.to_thread(self._is_damaged, record):
                log.error("stored version damaged, it is received again", version=key.version)
                self._damaged(key.version)
                self.handle(VersionReplaced(key))
                return
            raise CorruptChunk(
                f"version {key.version} as loaded does not match its signed state hash",
                cause="memory or the device changed it",
                fix="check this machine's memory; the peer does not generate with weights that it cannot vouch for",
            )
        log.info("version loaded", version=key.version)
        self.handle(VersionLoaded(key))

    def _held_state(self, version: Version, held: ExitStack) -> VersionState:
        """Return a version's state and its base's; retention does not remove them until ``held`` is closed."""
        encoding = self._store.get(version)
        if encoding is None:
            raise StoreError(f"version {version} is no longer in the store", fix="keep more versions")
        record = encoding.verified.record
        base = None if record.base is None else self._held_state(record.base.version, held)
        state, path = encoding.state_bytes(), held.enter_context(encoding.state_file())
        return VersionState(record, state, path, in_memory=encoding.in_memory, base=base)

    def _is_damaged(self, record: VersionRecord) -> bool:
        """Return whether the stored state of a version has other bytes than were signed, or is gone since."""
        try:
            with ExitStack() as held:
                return state_hash(self._held_state(record.version, held).state) != record.state_hash
        except StoreError:
            return True

    async def _activate(self, key: VersionKey) -> None:
        await self._engine.activate(key.version)
        log.info("version active", version=key.version)
        self.handle(VersionActivated(key))

    async def _generate(self, batch_id: int, work: tuple[SlotWork, ...], slice_tokens: int) -> None:
        self._generation = self._engine.begin([_request(item) for item in work])
        self._work = dict(enumerate(work))
        self._requests = len(work)
        await self._generate_slice(batch_id, slice_tokens)

    async def _generate_slice(
        self, batch_id: int, slice_tokens: int, renew: AtVersionSwap | None = None, more: tuple[SlotWork, ...] = ()
    ) -> None:
        generation, work = self._generation, self._work
        if generation is None:
            raise ProcessFailed(f"batch {batch_id} is over and asked for more")
        if renew is not None:
            generation.renew(renew)
        if more:
            generation.add([_request(item) for item in more])
            work.update(enumerate(more, start=self._requests))
            self._requests += len(more)
        slices = await generation.next_slice(slice_tokens)
        news = tuple(self._news(work, new) for new in slices)
        self.handle(SliceGenerated(batch_id, news, generation.versions_free))

    def _news(self, work: dict[int, SlotWork], new: CompletionSlice) -> SliceTokens:
        item = work[new.request] if new.finish_reason is None else work.pop(new.request)
        segment = Segment(
            role="assistant",
            epoch=new.epoch,
            version=new.version,
            peer_id=self._peer_id,
            packed_ids=pack_ids(new.token_ids),
            loss_mask=b"\1" * len(new.token_ids),
            reported_logprobs=new.logprobs,
            routes=new.routes,
            context_routes=new.context_routes,
            sampler=self._engine.sampler,
        )
        if item.lease.kind != "training":
            segment = without_routes(segment)
        return SliceTokens(
            item.lease.lease_id, item.slot.sample_index, segment if new.token_ids else None, new.finish_reason
        )

    async def _upload(self, action: UploadRollouts) -> None:
        try:
            verdicts = await self._uploads.upload(action.rollouts)
        except RollcastError as error:
            log.warning("upload failed", rollouts=len(action.rollouts), cause=error.cause or error.what)
            self.handle(UploadFailed(action.upload_id, error.what, next(self._retry_delays)))
            return
        self._judged(action.rollouts, verdicts)
        if len(verdicts) == len(action.rollouts):
            self._retry_delays = self._delays()
        self.handle(UploadAnswered(action.upload_id, verdicts, next(self._retry_delays)))

    def _delays(self) -> Iterator[float]:
        return backoff_delays_s(self._random, first_s=0.2, most_s=5.0)


def _request(item: SlotWork) -> GenerateRequest:
    """Return what the engine has to generate. In an episode it continues after all turns and answers before."""
    prefix = item.slot.prefix
    known = unpack_ids(packed_of(prefix))
    before = sum(segment.token_count for segment in prefix[: turn_start(prefix)])
    return GenerateRequest(item.lease.prompt_token_ids, item.slot.seed, item.lease.sampling, known, before)
