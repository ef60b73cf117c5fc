"""Run the fleet's manager in the coordinator: events in, one at a time; actions out, in order.

Records are durable before the action behind them is carried out. Calls to providers run asynchronously, each with a
timeout, and come back as events. Once a second the fleet checks which workers' peers have a session.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

import structlog

from capacity.fleet.events import (
    AskOffers,
    BytesSent,
    DrainWorker,
    FleetAction,
    FleetEvent,
    ListFailed,
    ListWorkers,
    Note,
    OffersSeen,
    RecordClosed,
    RecordMark,
    RecordOpened,
    RunOver,
    StartFailed,
    StartSucceeded,
    StartWorker,
    StopFailed,
    StopSucceeded,
    StopWorker,
    Tick,
    WorkerJoined,
    WorkerLeft,
    WorkersListed,
    WorkersWanted,
)
from capacity.fleet.fleet import FleetManager
from capacity.fleet.rows import JoinedRow, Row, row_of
from capacity.providers.base import Provider, WorkerTag
from coordinator.fleet.journal import Journal
from rollcast.runtime.errors import ProviderFailed, RollcastError
from rollcast.wire.ids import PeerId

log = structlog.get_logger()

TICK_S = 1.0
EVENTS_MAX = 10_000
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Timeouts of one call to a provider, in seconds."""

    start_s: float
    stop_s: float
    ask_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCallbacks:
    """The functions of the coordinator that the fleet uses.

    Args:
        invite: makes an invite for one peer; returns it and the digest of its token.
        here: returns every peer with a session, and the bytes that it has sent since its start.
        dismiss: asks a peer to finish, upload and leave.
        note: writes one line to the run's event log.
        fail: ends the run with an error.
    """

    invite: Callable[[], Awaitable[tuple[str, bytes]]]
    here: Callable[[], Mapping[PeerId, int]]
    dismiss: Callable[[PeerId, str], None]
    note: Callable[[str, str, str], None]
    fail: Callable[[Exception], None]


class UnixClock:
    """Unix time that never goes back and never jumps: the wall clock at the start plus the monotonic time since."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._offset_s


class ProviderFleet:
    """Applies events to the fleet's manager and carries out its actions."""

    def __init__(
        self,
        manager: FleetManager,
        providers: Mapping[str, Provider],
        journal: Journal,
        callbacks: FleetCallbacks,
        deadlines: Deadlines,
        clock: Callable[[], float],
    ) -> None:
        self.manager = manager
        self._providers = providers
        self._journal = journal
        self._coordinator = callbacks
        self._deadlines = deadlines
        self._clock = clock
        self._events: asyncio.Queue[FleetEvent] = asyncio.Queue(EVENTS_MAX)
        self._wanted: dict[str, str] | None = None
        self._offered: set[str] = set()
        self._tags: dict[bytes, WorkerTag] = {}
        self._peers = {PeerId(peer): WorkerTag.parse(tag) for tag, peer in journal.content.peers.items()}
        self._here: set[PeerId] = set()
        self._starts: dict[WorkerTag, asyncio.Task[None]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._writing = asyncio.Lock()

    # ---------------------------------------------------------------- events in

    def submit(self, event: FleetEvent) -> None:
        """Queue an event. If the queue is full the event is discarded: a later listing shows the same again."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            log.error("provider event discarded", event_kind=type(event).__name__)

    def want(self, reasons: Mapping[str, str]) -> None:
        """Set the whole set of workers that should run, each with the reason."""
        if self._wanted != reasons:
            self._wanted = dict(reasons)
            self.submit(WorkersWanted(self._wanted))

    @property
    def wanted(self) -> frozenset[str]:
        """Return the ids of the workers that should run, as last set."""
        return frozenset(self._wanted or ())

    @property
    def offers_known(self) -> bool:
        """Return whether every provider has reported its offers."""
        return self._providers.keys() <= self._offered

    def now(self) -> float:
        """Return the Unix time that the manager works with, in seconds."""
        return self._clock()

    def peers_here(self) -> dict[PeerId, WorkerTag]:
        """Return the fleet's peers that have a session, with the worker of each."""
        return {peer_id: self._peers[peer_id] for peer_id in self._here if peer_id in self._peers}

    def claimed(self, token_digest: bytes, peer_id: PeerId) -> None:
        """Note that an identity joined with this invite; if the fleet made the invite, it is that worker's peer."""
        tag = self._tags.pop(token_digest, None)
        if tag is not None:
            self._peers[peer_id] = tag
            self._begin(self._write_joined(tag, peer_id))

    async def _write_joined(self, tag: WorkerTag, peer_id: PeerId) -> None:
        await self._write(JoinedRow(self._clock(), str(tag), peer_id))

    async def _write(self, row: Row) -> None:
        async with self._writing:
            await self._journal.write(row)

    async def run(self) -> None:
        """Handle events until cancelled.

        Raises:
            StoreError: the journal cannot be written.
        """
        ticking = self._begin(self._tick())
        try:
            while True:
                event = await self._events.get()
                for action in self.manager.handle(event, self._clock()):
                    await self._carry_out(action)
                if isinstance(event, OffersSeen):
                    self._offered.add(event.provider)
                if self.manager.idle:
                    self._idle.set()
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self._check_peers()
            self.submit(Tick())
            await asyncio.sleep(TICK_S)

    def _check_peers(self) -> None:
        here = self._coordinator.here()
        ours = {peer_id for peer_id in self._peers if peer_id in here}
        for peer_id in ours - self._here:
            self.submit(WorkerJoined(self._peers[peer_id]))
        for peer_id in self._here - ours:
            if peer_id in self._peers:
                self.submit(WorkerLeft(self._peers[peer_id], finished=False))
        self._here = ours
        if ours:
            self.submit(BytesSent({self._peers[peer_id]: here[peer_id] for peer_id in ours}))

    # ---------------------------------------------------------------- actions out

    async def _carry_out(self, action: FleetAction) -> None:
        match action:
            case RecordOpened() | RecordClosed() | RecordMark():
                await self._write(row_of(action))
                if isinstance(action, RecordClosed):
                    self._discard(action.tag)
            case Note():
                log.info("provider", kind=action.kind, subject=action.subject, detail=action.detail)
                self._coordinator.note(action.kind, action.subject, action.detail)
            case StartWorker():
                self._starts[action.tag] = self._begin(self._start(action))
            case StopWorker():
                self._begin(self._stop(action))
            case DrainWorker():
                self._drain(action)
            case ListWorkers():
                self._begin(self._list(action.provider))
            case AskOffers():
                self._begin(self._list_offers(action.provider))
            case _:
                assert_never(action)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._call_done)
        return task

    def _call_done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # the manager handles providers' errors; this is a bug or the disk
            self._coordinator.fail(error)

    def _drain(self, action: DrainWorker) -> None:
        for peer_id in [peer_id for peer_id, tag in self._peers.items() if tag == action.tag]:
            self._coordinator.dismiss(peer_id, action.reason)

    def _discard(self, tag: WorkerTag) -> None:
        for peer_id in [peer_id for peer_id, one in self._peers.items() if one == tag]:
            del self._peers[peer_id]
        for digest in [digest for digest, one in self._tags.items() if one == tag]:
            del self._tags[digest]

    # ---------------------------------------------------------------- calls

    async def _start(self, action: StartWorker) -> None:
        tag = action.tag
        try:
            invite, digest = await self._coordinator.invite()
            self._tags[digest] = tag
            found = await self._provider(action.provider).start(tag, invite, deadline_s=self._deadlines.start_s)
            self.submit(StartSucceeded(tag, found.where))
        except RollcastError as error:
            self.submit(StartFailed(tag, _in_words(error)))
        finally:
            self._starts.pop(tag, None)

    async def _stop(self, action: StopWorker) -> None:
        """Stop a worker; a start in progress is cancelled first."""
        start = self._starts.pop(action.tag, None)
        if start is not None:
            start.cancel()
            await asyncio.wait([start])
        try:
            await self._provider(action.provider).stop(action.tag, deadline_s=self._deadlines.stop_s)
            self.submit(StopSucceeded(action.tag))
        except RollcastError as error:
            self.submit(StopFailed(action.tag, _in_words(error)))

    async def _list(self, provider: str) -> None:
        asked_at = self._clock()
        try:
            run_id = self.manager.settings.run_id
            listing = await self._provider(provider).list(run_id, deadline_s=self._deadlines.ask_s)
            for worker_id, why in listing.silent.items():
                log.warning("worker's machine does not answer", worker=worker_id, why=why)
            self.submit(WorkersListed(provider, listing, asked_at))
        except RollcastError as error:
            self.submit(ListFailed(provider, _in_words(error)))

    async def _list_offers(self, provider: str) -> None:
        try:
            offers = await self._provider(provider).offers(deadline_s=self._deadlines.ask_s)
            self.submit(OffersSeen(provider, offers))
        except RollcastError as error:
            log.warning("provider cannot list its offers", provider=provider, why=_in_words(error))

    def _provider(self, name: str) -> Provider:
        """Return the provider. Raises ProviderFailed if only an earlier coordinator's configuration had it."""
        if name not in self._providers:
            raise ProviderFailed(f"no provider {name} is configured", fix="configure it until its workers are stopped")
        return self._providers[name]

    # ---------------------------------------------------------------- the end

    async def end(self, reason: str, timeout_s: float) -> None:
        """End the fleet: stop all workers and wait for that, then log those that may still cost money."""
        self._idle.clear()
        self.submit(RunOver(reason))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        for worker in self.manager.workers():
            log.error("a worker may still run and cost money", tag=worker.tag, provider=worker.provider)

    async def close(self) -> None:
        """Record what was spent; workers keep running for a restarted coordinator."""
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_S)
        await self._write(row_of(self.manager.mark(self._clock())))
        for provider in self._providers.values():
            await provider.close()
        self._journal.close()


def jitter() -> Callable[[float, float], float]:
    """Return the manager's source of randomness."""
    return random.Random().uniform


def _in_words(error: RollcastError) -> str:
    return f"{error.what}: {error.cause}" if error.cause else error.what
