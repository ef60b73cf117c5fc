"""Carry out what the uplink's core decides: report to the cell, deliver its rollouts, and publish versions in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, assert_never

import structlog

from learner.coordinator.client import CoordinatorClient
from peer.worker.core.events import (
    Event as WorkerEvent,
)
from peer.worker.core.events import (
    LeasesGranted,
    LeasesRevoked,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    SessionLost,
    SessionOpened,
    StopRequested,
    Tick,
    Verdict,
    VersionVerified,
)
from peer.worker.core.spool import BUSY
from peer.worker.core.status import Receiving, WorkerStatus
from peer.worker.uploads import Uploader
from rollcast.cell.core import CellAnswered, CellSize, Delivered, Event, MemberJudged, Report, UplinkCore
from rollcast.cell.publishing import CellPublisher
from rollcast.runtime.errors import ConfigError, RollcastError
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.ids import LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import lease_to_pb, rollout_from_pb
from rollcast.wire.versions.chunk_store import ChunkStore

DELIVERED_AT_ONCE = 64  # rollouts of one upload to the head
DELIVERY_WAIT_S = 10.0  # for which the cell may hold a call until it has a rollout
TICK_LEAST_S = 0.05
RETRY_MOST_S = 5.0

log = structlog.get_logger()


class Uplink:
    """The shell around UplinkCore; in a PeerProcess it has the worker's place.

    Args:
        client: of the cell's coordinator, in the learner's place.
        info: what the cell's coordinator answered to the first call.
    """

    def __init__(self, client: CoordinatorClient, info: pb.RunInfo, publisher: CellPublisher, random: Random) -> None:
        self._client = client
        self._info = info
        self._publisher = publisher
        self._random = random
        self._core = UplinkCore()
        self._send: Callable[[pb.PeerMessage], None] = lambda message: None
        self._uploads: Uploader | None = None
        self._store: ChunkStore | None = None
        self._newest: Version | None = None
        self._version_came = asyncio.Event()
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def attach(self, send: Callable[[pb.PeerMessage], None], uploads: Uploader, store: ChunkStore) -> None:
        """Connect this uplink to the peer at the head that it is a part of."""
        self._send, self._uploads, self._store = send, uploads, store

    async def learn(self) -> None:
        """Ask the cell which leases of the head it has, before the head is told.

        Raises:
            RollcastError: the cell's coordinator cannot be reached, or serves no cell.
        """
        self._apply(CellAnswered(await self._client.cell(pb.CellReport())))

    # ------------------------------------------------------------ what the peer calls

    @property
    def held_leases(self) -> list[LeaseId]:
        """Return every lease of the head of which a rollout may still be uploaded."""
        return self._core.held_leases

    @property
    def size(self) -> CellSize:
        """What the cell's members can do; how many they are is not known while the cell's coordinator is away."""
        size = self._core.size
        return replace(size, workers=None) if self._client.was_away else size

    def welcomed(self, welcome: pb.Welcome) -> None:
        """Check that the cell samples as the head asks for.

        Raises:
            ConfigError: it does not.
        """
        ours, theirs = pb.Sampling(), pb.Sampling()
        ours.CopyFrom(self._info.sampling)
        theirs.CopyFrom(welcome.sampling)
        for sampling in (ours, theirs):
            sampling.max_new_tokens = 0  # leases say it
        same = ours == theirs and self._info.router_replay == welcome.router_replay
        if welcome.HasField("sampling") and not (same and self._info.prompt_tokens_max >= welcome.prompt_tokens_max):
            raise ConfigError(
                "the cell's coordinator samples in another way than the head",
                cause=f"the head: {_words(theirs)}; the cell: {_words(ours)}",
                fix="copy task, tokenizer and sampling from the head's configuration into the cell's",
            )

    def member_judged(self, verdict: pb.AuditVerdict) -> None:
        """Take over what the head's learner found about a member of the cell."""
        log.warning("the head judged a member", peer_id=verdict.peer_id, state=verdict.state, reason=verdict.reason)
        self._apply(MemberJudged(PeerId(verdict.peer_id), verdict.state, verdict.reason))

    def handle(self, event: WorkerEvent) -> None:
        """Feed an event to the core and begin its actions. Never blocks."""
        match event:
            case SessionOpened() | SessionLost() | LeasesGranted() | LeasesRevoked():
                self._apply(event)
            case VersionVerified(key):
                self._newest = max(key.version, self._newest or key.version)
                self._version_came.set()
            case StopRequested(reason):
                if not self._ended.done():
                    self._ended.set_result(reason)
            case _:  # what concerns an engine, or the owner of a single machine
                pass

    def status(self, receiving: Receiving | None) -> WorkerStatus:
        """Return the state and counters for the next heartbeat."""
        size = self._core.size
        if self._client.was_away:
            reason = "the cell's coordinator does not answer"
            return WorkerStatus("idle", reason, None, size.tokens_generated, 0.0)
        if not size.workers:
            return WorkerStatus("idle", "the cell has no worker with a version", None, size.tokens_generated, 0.0)
        reason = f"a cell of {size.workers} workers"
        if receiving is not None:
            reason = f"{reason}; receives {receiving.in_words}"
        return WorkerStatus("generating", reason, None, size.tokens_generated, size.tokens_per_second)

    async def run(self) -> str:
        """Work until it is stopped; return the reason.

        Raises:
            RollcastError: the cell's coordinator refused a call or was unreachable for too long.
        """
        self._begin(self._deliver(), "delivering rollouts")
        self._begin(self._publish(), "publishing versions in the cell")
        self._apply(Tick())
        try:
            return await self._ended
        finally:
            if self._wake is not None:
                self._wake.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ inside

    def _apply(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        for action in self._core.handle(event, loop.time()):
            match action:
                case RequestWork(free_slots):
                    self._send(pb.PeerMessage(work_request=pb.WorkRequest(free_slots=free_slots)))
                case ReportVersionHeld(key):
                    self._send(pb.PeerMessage(version_held=pb.VersionHeld(epoch=key.epoch, version=key.version)))
                case ReturnLeases(lease_ids, reason):
                    self._send(pb.PeerMessage(lease_return=pb.LeaseReturn(lease_ids=lease_ids, reason=reason)))
                case Report():
                    self._begin(self._report(action), "reporting to the cell")
                case _:
                    assert_never(action)
        if self._wake is not None:
            self._wake.cancel()
        at_s = max(self._core.next_wake_s, loop.time() + TICK_LEAST_S)
        self._wake = None if self._ended.done() else loop.call_at(at_s, self._apply, Tick())

    async def _report(self, report: Report) -> None:
        over = [pb.SlotOver(lease_id=one, reason=reason, whole_lease=True) for one, reason in report.ended]
        convicted = [pb.ConvictedMember(peer_id=one, reason=reason) for one, reason in report.convicted]
        leases = [lease_to_pb(one) for one in report.leases]
        answer = await self._client.cell(pb.CellReport(leases=leases, over=over, convicted=convicted))
        self._apply(CellAnswered(answer))

    async def _deliver(self) -> None:
        """Upload the cell's stored rollouts to the head, and tell the cell what became of them.

        The cell returns a rollout until it hears that its slot is over. So one that was uploaded without an answer is
        uploaded again, which the head accepts without storing it twice.
        """
        over: list[pb.SlotOver] = []
        delays_s = self._delays_s()
        while True:
            report = pb.CellReport(over=over, rollouts_max=DELIVERED_AT_ONCE, wait_s=DELIVERY_WAIT_S)
            answer = await self._client.cell(report)
            over = []
            if not answer.rollouts:
                continue
            try:
                verdicts = await self._upload(answer.rollouts)
            except RollcastError as error:
                log.warning("not delivered to the head", rollouts=len(answer.rollouts), cause=error.cause or error.what)
                await asyncio.sleep(next(delays_s))
                continue
            final = tuple(one for one in verdicts if one.reason != BUSY)
            over = [
                pb.SlotOver(lease_id=one.lease_id, sample_index=one.sample_index, reason=one.reason) for one in final
            ]
            self._apply(Delivered(final))
            if final:
                delays_s = self._delays_s()
            else:
                await asyncio.sleep(next(delays_s))

    async def _upload(self, rollouts: Any) -> tuple[Verdict, ...]:
        if self._uploads is None:
            raise ValueError("this uplink is not attached to a peer")
        return await self._uploads.upload([rollout_from_pb(one) for one in rollouts])

    async def _publish(self) -> None:
        published: Version | None = None
        while True:
            await self._version_came.wait()
            self._version_came.clear()
            version, store = self._newest, self._store
            if version is None or store is None or version == published:
                continue
            await self._publisher.publish(store, version)
            published = version

    def _delays_s(self) -> Any:
        return backoff_delays_s(self._random, first_s=0.2, most_s=RETRY_MOST_S)

    def _begin(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        task = asyncio.create_task(work, name=doing)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)


def _words(sampling: pb.Sampling) -> str:
    return " ".join(str(sampling).split())
