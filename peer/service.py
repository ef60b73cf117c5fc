"""Run a peer process from startup to orderly shutdown: a relay, a session and, unless it is the origin, a worker."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Protocol

import structlog

from peer.config import LinkConfig, PeerConfig
from peer.connect.connectivity import Connectivity
from peer.connect.setup import ConnectivityContext, connectivity_components
from peer.donor.control.limits import OwnerLimitsBook
from peer.donor.daemon import Donor, be_polite
from peer.donor.describe import describe
from peer.donor.verdict import verdict_from
from peer.engines.base import Engine, WarmUp
from peer.links.gate import NetworkGate
from peer.reachability.advertised import AdvertisedReachability
from peer.reachability.summary import ReachabilitySummary
from peer.relay.relay import Relay
from peer.session.hello import heartbeat_of, hello_of, origin_status, receiving_of
from peer.session.pending_announcements import PendingAnnouncements
from peer.session.renewal import Renewal
from peer.session.session import Session
from peer.session.setup import http_url_of, session_of
from peer.startup import RunMembership, join_run, make_engine, open_store, state_folder_lock, watch_state_folder
from peer.worker.core.core import WorkerCore
from peer.worker.core.events import (
    ActivationChanged,
    Event,
    FinishRequested,
    LeasesGranted,
    LeasesRevoked,
    Rest,
    SessionLost,
    SessionOpened,
    VersionAnnounced,
    VersionKey,
    VersionVerified,
)
from peer.worker.core.status import Receiving, WorkerStatus
from peer.worker.drain import end, finish, unless
from peer.worker.text import RunText
from peer.worker.uploads import Uploader
from peer.worker.worker import Worker
from rollcast.runtime.errors import RollcastError
from rollcast.wire.donor.process_end import RUN_ENDED, remove_end, write_end
from rollcast.wire.ids import LeaseId
from rollcast.wire.limits import TEXT_LENGTH_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import lease_from_pb, sampling_from_pb
from rollcast.wire.version_swap import at_version_swap_from_pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import VerifiedVersion
from rollcast.wire.versions.stored_encoding import StoredEncoding

log = structlog.get_logger()

STOPPED_BY_SIGNAL = "stopped by a signal"


async def run(
    config: PeerConfig, stop: asyncio.Event, *, engine_factory: Callable[[PeerConfig], Engine] = make_engine
) -> int:
    """Run a peer until the coordinator ends the run or ``stop`` is set.

    Returns:
        The exit status, 0.

    Raises:
        RollcastError: see peer.startup, peer.session.session and peer.worker.worker.
    """
    with state_folder_lock(config.state_folder):
        limits = OwnerLimitsBook(config)
        remove_end(config.state_folder)
        if limits.limits.polite and config.role == "peer":
            be_polite()
        started = await unless(stop, _start(limits, engine_factory))
        if started is None:
            return 0
        status = await started.run(stop)
        await asyncio.to_thread(started.donor.clear_up)
        return status


async def _start(limits: OwnerLimitsBook, engine_factory: Callable[[PeerConfig], Engine]) -> PeerProcess:
    config = limits.config
    engine = None if config.role == "origin" else await asyncio.to_thread(engine_factory, config)
    place = await join_run(config)
    store = await asyncio.to_thread(open_store, config, place.enrolment.run_id)
    structlog.contextvars.bind_contextvars(peer_id=place.identity.peer_id)
    return PeerProcess(limits, place, store, engine)


class CellSize(Protocol):
    """What the members of a cell can do."""

    @property
    def workers(self) -> int | None: ...  # None: not known, as the cell's coordinator does not answer

    @property
    def slots(self) -> int: ...


class CellUplink(Protocol):
    """A cell's uplink (rollcast.cell.uplink), which has the worker's place in a process without an engine."""

    @property
    def held_leases(self) -> list[LeaseId]: ...

    @property
    def size(self) -> CellSize: ...

    def attach(self, send: Callable[[pb.PeerMessage], None], uploads: Uploader, store: ChunkStore) -> None: ...

    def welcomed(self, welcome: pb.Welcome) -> None: ...

    def member_judged(self, verdict: pb.AuditVerdict) -> None: ...

    def handle(self, event: Event) -> None: ...

    def status(self, receiving: Receiving | None) -> WorkerStatus: ...

    async def run(self) -> str: ...


class PeerProcess:
    """The components of one peer and the wiring between them.

    It is the session's listener (SessionListener) and the donor's host (DonorHost): messages of the coordinator and
    commands of the owner arrive here and go to relay, worker or connectivity.
    """

    def __init__(
        self,
        limits: OwnerLimitsBook,
        place: RunMembership,
        store: ChunkStore,
        engine: Engine | None,
        cell: CellUplink | None = None,
    ) -> None:
        config, enrolment = limits.config, place.enrolment
        random = Random()
        self._config = config
        self._enrolment = enrolment
        self._instance_id = place.instance_id
        self._store = store
        self._engine = engine
        self._cell = cell
        self._sequence = 0
        self._announcements = PendingAnnouncements()
        self._advertise = ""
        self._stop_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._relay = Relay(
            credentials=enrolment.credentials,
            store=store,
            config=config,
            run_id=enrolment.run_id,
            learner_public_key=enrolment.learner_public_key,
            on_complete=self._version_held,
            on_accuse=lambda accusation: self._session.send(pb.PeerMessage(accusation=accusation)),
            on_give_up=self._relay_failed,
            coordinator_host=lambda: self._session.search.current.rpartition(":")[0].strip("[]"),
            identity=place.identity,
        )
        self._session = self._make_session(place, random)
        self._text = RunText(config.state_folder / "tokenizers", lambda: self._session.stub, random)
        self._tokenizer_fetch: asyncio.Task[None] | None = None
        self._renewal = Renewal(
            enrolment.credentials,
            folder=config.state_folder,
            send=self._session.send,
            renewed=self._relay.renew,  # the open session keeps the old certificate until it reconnects
            random=random,
        )
        self._verdict: dict[str, Any] | None = None  # what the run found wrong with its rollouts
        self._started_s = asyncio.get_running_loop().time()
        self.donor = Donor(limits, self, place.instance_id)
        self._worker: Worker | CellUplink | None = cell if engine is None else self._make_worker(engine, random)
        if cell is not None:
            cell.attach(self._send, Uploader(lambda: self._session.stub), store)
        self._reachability, self._summary = AdvertisedReachability(self._session.send), ReachabilitySummary()
        self._connectivity = self._make_connectivity(config, place)

    def _make_session(self, place: RunMembership, random: Random) -> Session:
        return session_of(
            self._config,
            place,
            lambda: self._renewal,
            hello=self._hello,
            heartbeat=self._heartbeat,
            listener=self,
            random=random,
        )

    def _make_connectivity(self, config: PeerConfig, place: RunMembership) -> Connectivity:
        context = ConnectivityContext(
            config=config,
            place=place,
            relay=self._relay,
            reachability=self._reachability,
            send=self._session.send,
            credentials=lambda: self._renewal.credentials,
            http_url=lambda: http_url_of(config, place, self._session.search.current),
            advertised=lambda: self._advertise,
            summary=self._summary,
        )
        return Connectivity(connectivity_components(context))

    def _make_worker(self, engine: Engine, random: Random) -> Worker:
        settings = self._config.engine
        core = WorkerCore(
            concurrent_rollouts=settings.concurrent_rollouts,
            slice_tokens=settings.slice_tokens,
            slice_s=settings.slice_s,
            spool_bytes_max=self._config.spool_bytes_max,
        )
        return Worker(
            core,
            engine=engine,
            store=self._store,
            uploads=Uploader(lambda: self._session.stub),
            send=self._send,
            peer_id=self._enrolment.peer_id,
            random=random,
            judged=self.donor.judged,
            damaged=self._relay.receive_again,
        )

    async def run(self, stop: asyncio.Event) -> int:
        """Run all components until the coordinator, the owner or ``stop`` ends the process. Return exit status 0.

        Raises:
            RollcastError: the first component that failed did so with this error; the others were shut down in order.
        """
        self._advertise = await self._relay.start()
        log.info("peer started", peer_role=self._config.role, advertise=self._advertise)
        tasks: dict[str, asyncio.Task[Any]] = {
            "session": asyncio.create_task(self._session.run()),
            "renewal": asyncio.create_task(self._renewal.run()),
            "donor": asyncio.create_task(self.donor.run()),
            "connectivity": asyncio.create_task(self._connectivity.run()),
            "folder": asyncio.create_task(watch_state_folder(self._config.state_folder)),
            "signal": asyncio.create_task(stop.wait()),
            "stop": asyncio.create_task(_result_of(self._stop_reason)),
        }
        if self._worker is not None:
            tasks["worker"] = asyncio.create_task(self._worker.run())
        try:
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            if self._worker is not None and self._config.drain_s and done == {tasks["signal"]}:
                await finish(self._worker, tasks, STOPPED_BY_SIGNAL, self._config.drain_s)
                done = {task for task in tasks.values() if task.done()}
            errors = [error for task in done if (error := task.exception()) is not None]
            if errors:
                reason = str(errors[0]).splitlines()[0]
            else:
                ended = [tasks[name].result() for name in ("stop", "worker") if name in tasks and tasks[name].done()]
                reason = ended[0] if ended else STOPPED_BY_SIGNAL
            await end(reason, tasks, worker=self._worker, session=self._session, relay=self._relay)
            await asyncio.to_thread(write_end, self._config.state_folder, reason, unix_s=time.time())
            if errors:
                raise errors[0]
            return 0
        finally:
            ending = [*tasks.values(), *([self._tokenizer_fetch] if self._tokenizer_fetch is not None else [])]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            self._store.close()

    # ------------------------------------------------------------ session

    def opened(self, welcome: pb.Welcome) -> None:
        """Prepare for work in a new session, and request it as soon as stop strings can be recognised."""
        self.donor.coordinator_runs(welcome.software)
        self._connectivity.opened(welcome)
        if self._cell is not None:
            self._cell.welcomed(welcome)
            self._request_work(welcome)
        if self._engine is None:
            return
        if welcome.prompt_tokens_max and welcome.HasField("sampling"):
            sampling = sampling_from_pb(welcome.sampling)
            decode = self._text.known(welcome.tokenizer_json, sampling.stop_token_ids)
            at_swap = at_version_swap_from_pb(welcome.at_version_swap)
            work = WarmUp(welcome.prompt_tokens_max, sampling, decode, welcome.router_replay, at_swap)
            self._engine.expect(work)
            if sampling.stop_strings and decode is None:
                self._tokenizer_fetch = asyncio.create_task(self._work_with_text(self._engine, work, welcome))
                self._tokenizer_fetch.add_done_callback(self._tokenizer_fetched)
                return
        self._request_work(welcome)

    async def _work_with_text(self, engine: Engine, work: WarmUp, welcome: pb.Welcome) -> None:
        """Fetch the tokenizer, then request work: without it the engine cannot see where a stop string ends a rollout.

        Versions are received and loaded meanwhile.
        """
        decode = await self._text.decode(welcome.tokenizer_json, work.sampling.stop_token_ids)
        engine.expect(replace(work, decode=decode))
        self._request_work(welcome)

    def _tokenizer_fetched(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._stop_reason.done():
            self._stop_reason.set_exception(error)

    def _request_work(self, welcome: pb.Welcome) -> None:
        if self._worker is not None:
            held = welcome.prefetch_batches or 2.0
            at_swap = at_version_swap_from_pb(welcome.at_version_swap)
            self._worker.handle(SessionOpened(held, welcome.partial_interval_s, at_swap))

    def lost(self, reason: str) -> None:
        """Pass the loss of the session on; the worker continues under the leases that it holds."""
        self._connectivity.lost()
        if self._tokenizer_fetch is not None:
            self._tokenizer_fetch.cancel()
        if self._worker is not None:
            self._worker.handle(SessionLost(reason))

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Handle one message of the coordinator. A message that fails verification is logged and changes nothing."""
        try:
            self._take(message)
        except RollcastError as error:
            log.error("message of the coordinator dropped", kind=message.WhichOneof("body"), what=error.what)

    def _take(self, message: pb.CoordinatorMessage) -> None:
        match message.WhichOneof("body"):
            case "leases":
                self._notify_worker(LeasesGranted(tuple(lease_from_pb(lease) for lease in message.leases.leases)))
            case "lease_revoke":
                lease_ids = tuple(LeaseId(lease_id) for lease_id in message.lease_revoke.lease_ids)
                self._notify_worker(LeasesRevoked(lease_ids, message.lease_revoke.reason))
            case "relay_plan":
                self._relay.apply_plan(message.relay_plan)
            case "probe":
                self._relay.probe(message.probe)
            case "announcement":
                if self._announcements.came(message.announcement):
                    # A version that the store holds already is reported by this call.
                    self._notify_worker(VersionAnnounced(_key(self._relay.announce(message.announcement))))
            case "activation":
                self._activation_changed(message.activation)
            case "audit_verdict" if self._cell is not None and message.audit_verdict.peer_id:
                self._cell.member_judged(message.audit_verdict)
            case "audit_verdict":
                self._audit_verdict(message.audit_verdict)
            case "certificate":
                self._renewal.received(message.certificate.certificate_pem)
            case "stop":
                if not self._stop_reason.done():
                    self._stop_reason.set_result(f"{RUN_ENDED}: {message.stop.reason or 'without a reason'}")
            # Every body that is left belongs to a connectivity component, or to a newer release than this one.
            case other if not self._connectivity.received(message):
                log.warning("unknown message of the coordinator ignored", kind=other)

    def _activation_changed(self, activation: pb.Activation) -> None:
        reason = activation.reason[:TEXT_LENGTH_MAX]
        log.info("switched on" if activation.active else "on standby", reason=reason)
        self._notify_worker(ActivationChanged(activation.active, reason))

    def _audit_verdict(self, message: pb.AuditVerdict) -> None:
        self._verdict = verdict_from(message)
        if self._verdict is not None:
            log.warning("the run found something wrong with this machine's rollouts", **self._verdict)

    def _notify_worker(self, event: Event) -> None:
        if self._worker is not None:
            self._worker.handle(event)

    # ------------------------------------------------------------ requests of the owner (see DonorHost)

    def rest(self, event: Rest) -> None:
        self._notify_worker(event)

    def finish(self, event: FinishRequested) -> None:
        if self._worker is not None:
            self._worker.handle(event)
        elif event.ends and not self._stop_reason.done():
            self._stop_reason.set_result(event.reason)

    def allow_network(self, gate: NetworkGate) -> None:
        self._relay.allow(gate)
        for announcement in self._announcements.allow(gate):
            self.received(pb.CoordinatorMessage(announcement=announcement))

    def cap_links(self, link: LinkConfig) -> None:
        self._relay.traffic.cap(link)

    @property
    def moved_far_bytes(self) -> tuple[int, int]:
        return self._relay.traffic.moved_far_bytes

    @property
    def holds_work(self) -> bool:
        return self._worker is not None and bool(self._worker.held_leases)

    def describe(self) -> dict[str, Any]:
        return describe(
            self._hello(),
            self._heartbeat_now(),
            run_id=self._enrolment.run_id,
            peer_id=self._enrolment.peer_id,
            search=self._session.search,
            reach=self._summary.describe(self._reachability.now, self._advertise),
            verdict=self._verdict,
            connected=self._session.stub is not None,
            now=(now := asyncio.get_running_loop().time()),
            uptime_s=now - self._started_s,
        )

    # ------------------------------------------------------------ relay

    def _version_held(self, verified: VerifiedVersion, _: StoredEncoding) -> None:
        if self._worker is not None:
            self._worker.handle(VersionVerified(_key(verified)))
        else:
            held = pb.VersionHeld(epoch=verified.record.epoch, version=verified.version)
            self._send(pb.PeerMessage(version_held=held))

    def _send(self, message: pb.PeerMessage) -> None:
        """Send a report of the worker or of this process, with the relay's byte count where it holds a version."""
        if message.WhichOneof("body") == "version_held":
            message.version_held.bytes_received = self._relay.bytes_received(message.version_held.version)
        self._session.send(message)

    def _relay_failed(self, error: Exception) -> None:
        if not self._stop_reason.done():
            self._stop_reason.set_exception(error)

    # ------------------------------------------------------------ reports to the coordinator

    def _hello(self) -> pb.Hello:
        hello = hello_of(
            self._config,
            advertise=self._advertise,
            cores=os.cpu_count() or 1,
            accelerator=None if self._engine is None else self._engine.hardware,
            sampler="" if self._engine is None else self._engine.sampler,
            held_versions=self._store.versions(),
            held_leases=None if self._worker is None else self._worker.held_leases,
            instance_id=self._instance_id,
        )
        if self._cell is not None:
            hello.cell, hello.hardware, hello.concurrent_rollouts = True, "a cell", self._cell.size.slots
        return hello

    def _heartbeat(self) -> pb.Heartbeat:
        self._sequence += 1
        heartbeat = self._heartbeat_now()
        heartbeat.sequence = self._sequence
        return heartbeat

    def _heartbeat_now(self) -> pb.Heartbeat:
        relay = self._relay.stats()
        receiving = receiving_of(relay)
        held = self._store.versions()
        status = origin_status(held, receiving) if self._worker is None else self._worker.status(receiving)
        heartbeat = heartbeat_of(relay, status, self._announcements.gate)
        if self._cell is not None:
            size = self._cell.size
            heartbeat.cell_slots = size.slots
            if size.workers is not None:
                heartbeat.cell_workers = size.workers
        return heartbeat


def _key(verified: VerifiedVersion) -> VersionKey:
    return VersionKey(verified.record.version, verified.record.epoch)


async def _result_of(future: asyncio.Future[str]) -> str:
    return await future
