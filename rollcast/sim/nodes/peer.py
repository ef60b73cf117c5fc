"""Simulate a peer's process: the real worker core with a session, an engine that takes time, and a receiver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol, assert_never

import msgspec

from coordinator.core.events import events as ev
from coordinator.core.events.events import PeerFacts
from peer.worker.core.core import WorkerCore
from peer.worker.core.events import (
    Action,
    ActivateVersion,
    ActivationChanged,
    ContinueBatch,
    EndBatch,
    Event,
    Finish,
    GenerateBatch,
    LeasesGranted,
    LeasesRevoked,
    LoadVersion,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    RolloutsDropped,
    SendPartials,
    SessionLost,
    SessionOpened,
    SliceGenerated,
    StopRequested,
    Tick,
    UploadAnswered,
    UploadFailed,
    UploadRollouts,
    Verdict,
    VersionActivated,
    VersionAnnounced,
    VersionKey,
    VersionLoaded,
    VersionVerified,
)
from peer.worker.core.status import WorkerStatus
from rollcast.runtime.waits import backoff_delays_s
from rollcast.sim.engine import Engine
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.network import Line
from rollcast.sim.kernel.process import Process
from rollcast.sim.kernel.rpc import Call, Failed
from rollcast.sim.nodes.control_link import Addresses, ControlLink
from rollcast.sim.nodes.coordinator import CoordinatorNode, Malformed
from rollcast.sim.run_settings import VOCABULARY
from rollcast.sim.settings import EngineSettings
from rollcast.sim.world import Ground
from rollcast.wire.ids import FencingToken, LeaseId, PeerId, Version
from rollcast.wire.rollouts import Rollout, Segment
from rollcast.wire.token_ids import pack_ids
from rollcast.wire.versions.records import VerifiedVersion

UPLOAD_TIMEOUT_S = 20.0


class Receiver(Protocol):
    """A receiver of versions in a peer's process."""

    def begin(self) -> None:
        """Start with what the process's disk holds."""
        ...

    def killed(self) -> None:
        """Discard what the process held in memory."""
        ...

    def announced(self, verified: VerifiedVersion) -> None:
        """Handle the coordinator's announcement of a version."""
        ...

    def planned(self, plan: Any) -> None:
        """Handle a relay plan from the coordinator."""
        ...

    def loadable(self, version: Version) -> bool:
        """Return whether a version is complete and as signed: the engine's last check before it loads it."""
        ...

    def as_signed(self, version: Version) -> bool:
        """Return whether the bytes of a version are truly the signed ones; for the judge only."""
        ...

    def complete(self, version: Version) -> bool:
        """Return whether every chunk of a version is truly present; for the judge only."""
        ...

    def received_s(self, now: float) -> float:
        """Return how many seconds of this life were spent receiving versions; 0 if the receiver does not count them."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the receiver's fields of a heartbeat."""
        ...


class PeerNode(Process):
    """A peer's process and its machine. The disk outlives the process.

    Args:
        engine: the engine's speed, and how many rollouts it generates at once.
    """

    def __init__(
        self, ground: Ground, coordinators: Sequence[CoordinatorNode], name: str, line: Line, engine: EngineSettings
    ) -> None:
        super().__init__(name, ground.agenda)
        self.ground = ground
        self._addresses = Addresses(coordinators)
        self.peer_id = PeerId(name)
        self.line = line
        self.speed = engine.speed
        self._reread_s = engine.reread_s
        self._concurrent_rollouts = engine.concurrent_rollouts
        self.disk = Disk(ground.chance.of(f"disk of {name}"))
        self.disk.state.sync_s = ground.settings.sync_s
        self.receiver: Receiver | None = None
        self.worker: WorkerCore | None = None
        self.victim = PeerId("")  # whom it accuses, together with other hostile peers
        self.hostile = False  # uploads invalid rollouts now and then, and accuses other peers
        self.hung = False  # the engine returns no slice until the process is restarted
        self.repeats_uploads = 0.0  # share of uploads that the transport delivers twice
        self._random: Random = ground.chance.of(f"peer {name}")
        self._engine = self._new_engine()
        self.link: ControlLink | None = None
        self._retries: Iterator[float] = iter(())
        self._wake_at: float | None = None
        self._probe_id = 0
        self._beat: ev.HeartbeatReceived | None = None  # every heartbeat until the worker's next event; None: not known

    # ---------------------------------------------------------------- lives

    def _begin(self) -> None:
        settings = self.ground.settings
        self._engine, self.hung = self._new_engine(), False
        self.worker = WorkerCore(
            concurrent_rollouts=self._concurrent_rollouts,
            slice_tokens=settings.slice_tokens,
            slice_s=settings.slice_s,
        )
        self.link, self._wake_at, self._beat = None, None, None
        self._retries = backoff_delays_s(self._random, first_s=0.2, most_s=5.0)
        self.ground.oracle.peer_started(self.name, self.agenda.now)
        if self.receiver is not None:
            self.receiver.begin()
        self.later(settings.boot_s, self._connect)

    def _killed(self) -> None:
        self.worker = None
        if self.receiver is not None:
            self.receiver.killed()
        if self.link is not None:
            self.link.close("the connection was closed")

    def _new_engine(self) -> Engine:
        settings = self.ground.settings
        return Engine(self.peer_id, settings.lengths, settings.token_s / self.speed)

    # ---------------------------------------------------------------- session

    def _connect(self) -> None:
        callbacks = (self._received, self._opened, lambda reason: self.apply(SessionLost(reason)))
        node, addresses, random = self, self._addresses, self._random
        self.link = ControlLink(self.ground, node, addresses, self._joined, self._heartbeat, *callbacks, random)
        self.link.dial()

    def _joined(self) -> ev.PeerJoined:
        address = f"{self.name}:1" if self.line.dialable else ""
        slots = self._concurrent_rollouts
        held = () if self.worker is None else tuple(self.worker.held_leases)
        named = (self.peer_id, "peer", self.name, address, slots, "simulated")
        return ev.PeerJoined(*named, held_leases=held, host=self.name)

    def _received(self, kind: str, content: Any) -> None:
        match kind:
            case "leases":
                self.apply(LeasesGranted(content))
            case "revoke":
                self.apply(LeasesRevoked(content.lease_ids, content.reason))
            case "announcement":
                self.apply(VersionAnnounced(VersionKey(content.version, content.record.epoch)))
                if self.receiver is not None:
                    self.receiver.announced(content)
            case "plan":
                if self.receiver is not None:
                    self.receiver.planned(content)
            case "probe":
                self._probe_id, self._beat = content, None
            case "activation":
                self.apply(ActivationChanged(content.active, content.reason))
            case "stop":
                self.apply(StopRequested(content))
            case _:
                raise ValueError(kind)

    def _opened(self, held_batches: float) -> None:
        settings = self.ground.settings
        self.apply(SessionOpened(held_batches, settings.partial_interval_s, settings.at_version_swap))

    def _heartbeat(self) -> ev.HeartbeatReceived:
        assert self.worker is not None
        self.ground.oracle.peer_holds(self.name, len(self.worker._spool), self.agenda.now)
        receiver = {} if self.receiver is None else self.receiver.facts()
        if self._beat is not None and not receiver:
            return self._beat
        status = self.worker.status(self.agenda.now)
        if receiver:
            return ev.HeartbeatReceived(self.peer_id, msgspec.structs.replace(self._facts(status), **receiver))
        beat = ev.HeartbeatReceived(self.peer_id, self._facts(status))
        if not status.tokens_per_second:
            self._beat = beat
        return beat

    def _facts(self, status: WorkerStatus) -> PeerFacts:
        return PeerFacts(
            state=status.state,
            reason=status.reason,
            active_version=None if status.active is None else status.active.version,
            tokens_generated=status.tokens_generated,
            tokens_per_second=status.tokens_per_second,
            uplink_bytes_per_second=self.line.up_bytes_s,
            uplink_measured_s=60.0,
            uplink_probe_id=self._probe_id,
            downlink_bytes_per_second=self.line.down_bytes_s,
            chunk_bytes_from_origin=0,
            chunk_bytes_from_peers=0,
            chunk_bytes_sent=0,
            chunks_rejected=0,
            receiving_version=None,
            receiving_chunks_have=0,
            receiving_chunks_total=0,
        )

    def accuse(self, culprit: PeerId, version: Version, index: int, reason: str, receipt: bytes = b"") -> None:
        """Report to the coordinator that another peer sent a wrong chunk, with its receipt unless that is empty."""
        self._say(ev.PeerAccused(self.peer_id, culprit, version, index, reason, receipt))

    # ---------------------------------------------------------------- the worker

    def stop(self, reason: str) -> None:
        """Drain, then end, as on SIGTERM."""
        if self.worker is not None:
            self.apply(StopRequested(reason))

    def slow_down(self, factor: float) -> None:
        """Let the engine take ``factor`` times as long a token as usual."""
        self._engine.token_s = self.ground.settings.token_s / self.speed * factor

    def verified(self, verified: VerifiedVersion) -> None:
        """Notify the worker that all of a version has been received and verified."""
        self.apply(VersionVerified(VersionKey(verified.version, verified.record.epoch)))

    def apply(self, event: Event) -> None:
        """Pass an event to the worker's core and carry out its actions, as the real shell does."""
        worker = self.worker
        if worker is None:
            return
        self._beat = None
        for action in worker.handle(event, self.agenda.now):
            self._perform(action)
        wake_s = worker.next_wake_s()
        if wake_s is not None and (self._wake_at is None or wake_s < self._wake_at):
            self._wake_by(wake_s)

    def _wake(self, at_s: float) -> None:
        if self._wake_at != at_s or self.worker is None:
            return
        self._wake_at = None
        wake_s = self.worker.next_wake_s()
        if wake_s is not None and wake_s > self.agenda.now:  # another event made this timer unnecessary
            self._wake_by(wake_s)
        else:
            self.apply(Tick())

    def _wake_by(self, wake_s: float) -> None:
        self._wake_at = max(wake_s, self.agenda.now + 0.001)
        self.later(self._wake_at - self.agenda.now, self._wake, self._wake_at)

    def _say(self, message: Any) -> None:
        if self.link is not None:
            self.link.send(message)

    def _perform(self, action: Action) -> None:
        settings = self.ground.settings
        match action:
            case RequestWork():
                self._say(ev.WorkRequested(self.peer_id, action.free_slots))
            case ReportVersionHeld():
                self._report(action.key)
            case ReturnLeases():
                self._say(ev.LeasesReturned(self.peer_id, action.lease_ids, action.reason))
            case SendPartials():
                for partial in action.partials:
                    self._say(ev.PartialReceived(self.peer_id, partial))
            case RolloutsDropped():
                self.ground.trace.add(self.agenda.now, "given up", self.name, action.reason, action.count)
            case LoadVersion():
                self.later(settings.load_s, self._loaded, action.key)
            case ActivateVersion():
                reread_s = self._reread_s if self._engine.busy else 0.0
                self.later(settings.swap_s + reread_s, self._activated, action.key)
            case GenerateBatch():
                self._engine.begin(action.work)
                self._generate_slice(action.batch_id, action.slice_tokens)
            case ContinueBatch():
                if action.renew:
                    self._engine.renew()
                self._engine.add(action.more)
                self._generate_slice(action.batch_id, action.slice_tokens)
            case EndBatch():
                pass
            case UploadRollouts():
                self._upload(action)
            case Finish():
                self._finish(action.reason)
            case _:
                assert_never(action)

    def _report(self, key: VersionKey) -> None:
        complete = self.receiver is None or self.receiver.complete(key.version)
        self.ground.oracle.peer_claims(self.name, key.version, complete, self.agenda.now)
        self._say(ev.VersionHeld(self.peer_id, key.epoch, key.version))

    def _loaded(self, key: VersionKey) -> None:
        if self.receiver is not None and not self.receiver.loadable(key.version):
            self.ground.trace.add(self.agenda.now, "not as signed", self.name, key.version)
            self.kill()  # a peer never generates with weights that do not match their signature
            return
        self.apply(VersionLoaded(key))

    def _activated(self, key: VersionKey) -> None:
        self._engine.active = key
        as_signed = self.receiver is None or self.receiver.as_signed(key.version)
        self.ground.oracle.activated(self.name, key.version, as_signed, self.agenda.now)
        self.apply(VersionActivated(key))

    def _generate_slice(self, batch_id: int, tokens_max: int) -> None:
        self.later(self._engine.slice_s(tokens_max), self._end_slice, batch_id, tokens_max, self._paused_s())

    def _end_slice(self, batch_id: int, tokens_max: int, paused_before_s: float) -> None:
        if self.hung:
            return
        paused_s = self._paused_s()
        if paused_s - paused_before_s > 1e-6:  # generation paused for receiving: the slice takes that much longer
            self.later(paused_s - paused_before_s, self._end_slice, batch_id, tokens_max, paused_s)
            return
        self.apply(SliceGenerated(batch_id, self._engine.generate(tokens_max)))

    def _paused_s(self) -> float:
        """Return the seconds spent receiving if generation pauses meanwhile; else 0."""
        pauses = self.ground.settings.pauses_while_receiving
        return self.receiver.received_s(self.agenda.now) if pauses and self.receiver is not None else 0.0

    def _upload(self, action: UploadRollouts) -> None:
        times = 2 if self.repeats_uploads and self._random.random() < self.repeats_uploads else 1
        rollouts: Sequence[Rollout | Malformed] = action.rollouts
        if self.hostile:
            self._accuse_random_peer()
            rollouts = tuple(
                _spoiled(one, self._random) if self._random.random() < 0.5 else one for one in action.rollouts
            )
        request = (self.peer_id, tuple(rollouts))
        coordinator = self._addresses.current
        call = Call(self.ground.network, self, coordinator, coordinator.upload, request, times)
        size_bytes = self.ground.settings.rollout_bytes * len(action.rollouts)
        call.begin(lambda outcome: self._uploaded(action, outcome), UPLOAD_TIMEOUT_S, size_bytes)

    def _accuse_random_peer(self) -> None:
        """Accuse the liars' victim or a random peer of a corrupt chunk of the active version, which is a lie."""
        culprit = PeerId(f"peer-{self._random.randrange(self.ground.settings.peers)}")
        if self._random.random() < 0.5:
            culprit = self.victim
        active = None if self.worker is None else self.worker.status(self.agenda.now).active
        if active is not None and culprit != self.peer_id:
            self.accuse(culprit, active.version, self._random.randrange(self.ground.settings.chunks), "a lie")

    def _uploaded(self, action: UploadRollouts, outcome: Any) -> None:
        if isinstance(outcome, Failed):
            self.apply(UploadFailed(action.upload_id, outcome.reason, next(self._retries)))
            return
        self._retries = backoff_delays_s(self._random, first_s=0.2, most_s=5.0)
        verdicts = tuple(Verdict(one.lease_id, one.sample_index, one.accepted, one.reason) for one in outcome)
        self.apply(UploadAnswered(action.upload_id, verdicts, next(self._retries)))

    def _finish(self, reason: str) -> None:
        if self.link is not None:
            self.link.close(reason, finished=True)
        self.kill()


def _spoiled(rollout: Rollout, random: Random) -> Rollout | Malformed:
    """Return a rollout that no honest peer makes and that must not be stored, recognisable by its form."""
    first = rollout.segments[0]
    match random.randrange(8):
        case 0:
            return replace(rollout, fencing_token=FencingToken(rollout.fencing_token + 1))
        case 1:
            return replace(rollout, lease_id=LeaseId(max(1, rollout.lease_id - 1)))
        case 2:
            return _with_first(rollout, replace(first, packed_ids=pack_ids((VOCABULARY, *first.token_ids[1:]))))
        case 3:
            return _with_first(rollout, replace(first, version=Version(first.version + 1000)))
        case 4:
            return _with_first(rollout, replace(first, peer_id=PeerId("somebody")))
        case 5:
            return _partly_of_a_tool(rollout)
        case 6:
            return _with_first(
                rollout, replace(first, packed_ids=pack_ids(first.token_ids * 99), loss_mask=first.loss_mask * 99)
            )
        case _:
            return Malformed(rollout.lease_id, rollout.fencing_token, rollout.sample_index)


def _partly_of_a_tool(rollout: Rollout) -> Rollout:
    """Return the rollout with half of its first segment in the name of a tool; what is left is a rollout still."""
    first = rollout.segments[0]
    ids, half = first.token_ids, (len(first.token_ids) + 1) // 2
    said = replace(first, packed_ids=pack_ids(ids[:half]), loss_mask=first.loss_mask[:half], role="tool")
    rest = replace(first, packed_ids=pack_ids(ids[half:]), loss_mask=first.loss_mask[half:])
    return replace(rollout, segments=(said, rest, *rollout.segments[1:]))


def _with_first(rollout: Rollout, first: Segment) -> Rollout:
    return replace(rollout, segments=(first, *rollout.segments[1:]))
