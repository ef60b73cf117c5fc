"""Run thousands of peers in one process, each with its own identity, connection and session and next to no work.

Uploads and heartbeats occur at given rates of the whole fleet (Poisson processes), regardless of the coordinator. The
latency of an answer counts from the moment at which the upload was due, so that a coordinator that stalls is charged
for the uploads that it kept waiting. Leased slots are uploaded in the order in which they were leased.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio
from blake3 import blake3

from bench.fleet.history import History
from bench.fleet.long_rollouts import LeasedSlot, LongRollouts, upload_of
from peer.worker.uploads import UploadStream
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import end_call, open_channel
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb

END_OF_STREAM: Any = cast(Any, grpc.aio).EOF  # missing in the type stubs
SESSION = "/rollcast.v1.Coordinator/Session"
UPLOADS = "/rollcast.v1.Coordinator/UploadRollouts"
UPLOAD_DEADLINE_S = 30.0
WELCOME_DEADLINE_S = 30.0
AGAIN_FIRST_S, AGAIN_MOST_S = 0.2, 5.0  # waits before a retry of an upload or a session, as in a peer
LINKS_REPORTED = 6
# Sessions that are being opened at the same time. Each real peer has a processor of its own for its handshake; here all
# share one, and those that had to wait for it would give up and begin anew.
OPENING_AT_ONCE = 64
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The behaviour of the whole fleet."""

    heartbeats_s: float
    uploads_s: float
    connects_s: float = 250.0  # first connections a second
    slots_held: int = 2  # most slots that a peer holds
    asks: bool = True  # for answers to heartbeats, as a peer does that has a further address to go to


@dataclass(slots=True)
class Answers:
    """The outcome of uploads that were due while the clock ran."""

    due: int = 0
    latencies_s: list[float] = field(default_factory=list)  # of acknowledged uploads, since they were due
    sent_late_s: list[float] = field(default_factory=list)  # how late the fleet itself was
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)  # calls that ended without a verdict, by status
    starved: int = 0  # uploads that were due while no slot was leased
    heartbeats: int = 0


class FleetPeer:
    """One peer: its identity, its session, and the slots that it holds."""

    __slots__ = (
        "asked_for",
        "beat",
        "enrolment",
        "hello",
        "opened_at_s",
        "outbox",
        "redial_spread_s",
        "role",
        "slots",
        "stream",
        "uploads",
        "version",
        "writes",
        "writing",
    )

    def __init__(self, enrolment: Enrolment, role: str, number: int, rng: random.Random) -> None:
        self.enrolment = enrolment
        self.role = role
        self.hello = _hello(role, number, rng)
        self.beat = _heartbeat(rng)
        self.slots: dict[tuple[int, int], _Slot] = {}
        self.version: pb.VersionHeld | None = None
        self.asked_for = 0  # slots requested and not leased yet
        self.uploads: Any = None  # opens a stream of uploads, while a session is open
        self.stream: UploadStream | None = None
        self.writes: Any = None
        self.redial_spread_s = 0.0  # as the coordinator asked for
        self.opened_at_s = 0.0  # start of the newest session on the monotonic clock
        self.outbox: deque[bytes] = deque()
        self.writing = False

    def hello_now(self) -> bytes:
        """Return the hello message, which names the leases that the peer still holds, those being uploaded included."""
        self.hello.hello.held_leases[:] = sorted({lease_id for lease_id, _ in self.slots})
        return self.hello.SerializeToString()


@dataclass(slots=True)
class _Slot:
    peer: FleetPeer
    leased: LeasedSlot
    version: int
    leased_at_s: float
    revoked: bool = False


class Fleet:
    """All peers; ``live`` runs until it is cancelled, and figures go to ``answers`` while ``counting``."""

    def __init__(
        self, peers: list[FleetPeer], shape: FleetShape, rollouts: LongRollouts, history: History, rng: random.Random
    ) -> None:
        self._peers = peers
        self._shape = shape
        self._rollouts = rollouts
        self._history = history
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._ready: deque[_Slot] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_beat = 0
        self._openings = asyncio.Semaphore(OPENING_AT_ONCE)
        self.connected = 0
        self.under_way = 0  # uploads without a verdict
        self.uploading = False
        self.counting = False
        self.answers = Answers()

    @property
    def holding(self) -> int:
        """Return the number of slots that are leased and not uploaded."""
        return len(self._ready)

    def opened_since(self, at_s: float) -> int:
        """Return the number of sessions opened since this moment of the monotonic clock that are still open."""
        return sum(peer.writes is not None and peer.opened_at_s >= at_s for peer in self._peers)

    async def live(self) -> None:
        """Connect all peers, and keep them connected."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pace(self._shape.heartbeats_s, self._beat))
                group.create_task(self._pace(self._shape.uploads_s, self._upload_next))
                for number, peer in enumerate(self._peers):
                    group.create_task(self._keep_connected(peer, number / self._shape.connects_s))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pace(self, per_s: float, act: Callable[[float], None]) -> None:
        due_s = self._loop.time()
        while True:
            now_s = self._loop.time()
            while due_s <= now_s:
                act(due_s)
                due_s += self._rng.expovariate(per_s)
            await asyncio.sleep(due_s - now_s)

    # ---------------------------------------------------------------- sessions

    async def _keep_connected(self, peer: FleetPeer, first_after_s: float) -> None:
        await asyncio.sleep(first_after_s)
        delays_s = self._delays_s()
        while True:
            if await self._one_session(peer):
                delays_s = self._delays_s()
            spread_s = self._rng.uniform(0.0, peer.redial_spread_s)
            await asyncio.sleep(max(next(delays_s), spread_s))

    def _delays_s(self) -> Iterator[float]:
        return backoff_delays_s(self._rng, first_s=AGAIN_FIRST_S, most_s=AGAIN_MOST_S)

    async def _one_session(self, peer: FleetPeer) -> bool:
        """Run one session to its end, and return whether it was opened."""
        async with open_channel(peer.enrolment.grpc_address, peer.enrolment.credentials) as channel:
            generic = cast(Any, channel)
            await self._openings.acquire()
            call = generic.stream_stream(SESSION)()
            try:
                try:
                    async with asyncio.timeout(WELCOME_DEADLINE_S):
                        await call.write(peer.hello_now())
                        welcome = await call.read()
                finally:
                    self._openings.release()
                if welcome is END_OF_STREAM:
                    return False
                peer.redial_spread_s = pb.CoordinatorMessage.FromString(welcome).welcome.redial_spread_s
                self._opened(peer, call, generic.stream_stream(UPLOADS))
                try:
                    while (data := await call.read()) is not END_OF_STREAM:
                        self._receive(peer, pb.CoordinatorMessage.FromString(data))
                finally:
                    self._closed(peer)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                return False
            finally:
                end_call(call)
        return True

    def _opened(self, peer: FleetPeer, writes: Any, uploads: Any) -> None:
        """Begin with a session that is open, and that ``writes`` and ``uploads`` belong to."""
        peer.writes, peer.uploads = writes, uploads
        self.connected, peer.opened_at_s = self.connected + 1, time.monotonic()
        peer.asked_for = 0
        if peer.version is not None:  # a reconnected peer keeps its version
            self._send(peer, pb.PeerMessage(version_held=peer.version))
            self._request_work(peer)

    def _closed(self, peer: FleetPeer) -> None:
        self.connected -= 1
        peer.writes = peer.uploads = peer.stream = None
        peer.outbox.clear()

    def _receive(self, peer: FleetPeer, message: pb.CoordinatorMessage) -> None:
        match message.WhichOneof("body"):
            case "announcement":
                record = pb.VersionRecord.FromString(message.announcement.record.payload)
                peer.version = pb.VersionHeld(epoch=record.epoch, version=record.version)
                self._send(peer, pb.PeerMessage(version_held=peer.version))
                self._request_work(peer)
            case "leases":
                for lease in message.leases.leases:
                    self._leased(peer, lease)
            case "lease_revoke":
                revoked = set(message.lease_revoke.lease_ids)
                for key in [key for key in peer.slots if key[0] in revoked]:
                    peer.slots.pop(key).revoked = True

    def _leased(self, peer: FleetPeer, lease: pb.Lease) -> None:
        assert peer.version is not None
        peer.asked_for = 0
        for one in lease.slots:
            key = (lease.lease_id, one.sample_index)
            leased = LeasedSlot(
                peer_id=peer.enrolment.peer_id,
                lease_id=lease.lease_id,
                fencing_token=lease.fencing_token,
                group_id=lease.group_id,
                sample_index=one.sample_index,
                epoch=lease.epoch,
                prompt_token_ids=tuple(lease.prompt_token_ids),
            )
            slot = peer.slots[key] = _Slot(peer, leased, peer.version.version, self._loop.time())
            self._ready.append(slot)

    def _request_work(self, peer: FleetPeer) -> None:
        """Request more work once half of the slots are free."""
        free = self._shape.slots_held - len(peer.slots)
        wants = free != peer.asked_for and 2 * free >= self._shape.slots_held
        if peer.role == "peer" and peer.version is not None and wants:
            peer.asked_for = free  # no further request for these until leases arrive
            self._send(peer, pb.PeerMessage(work_request=pb.WorkRequest(free_slots=free)))

    def _send(self, peer: FleetPeer, message: pb.PeerMessage) -> None:
        if peer.writes is None:
            return
        peer.outbox.append(message.SerializeToString())
        if not peer.writing:
            peer.writing = True  # a call takes one message at a time
            self._start(self._write(peer))

    async def _write(self, peer: FleetPeer) -> None:
        try:
            while peer.outbox and peer.writes is not None:
                await peer.writes.write(peer.outbox.popleft())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the session's reader gets the error too
        finally:
            peer.writing = False

    def _beat(self, _due_s: float) -> None:
        peer = self._peers[self._next_beat]
        self._next_beat = (self._next_beat + 1) % len(self._peers)
        if peer.writes is not None:
            beat = peer.beat
            beat.sequence += self._shape.asks
            beat.tokens_generated += 100
            if peer.version is not None:
                beat.has_active_version, beat.active_version = True, peer.version.version
            self.answers.heartbeats += self.counting
            self._send(peer, pb.PeerMessage(heartbeat=beat))

    # ---------------------------------------------------------------- uploads

    def _upload_next(self, due_s: float) -> None:
        if not self.uploading:
            return
        self.answers.due += self.counting
        while self._ready:
            slot = self._ready.popleft()
            if not slot.revoked:
                self.under_way += 1
                self._start(self._upload(slot, due_s, counted=self.counting))
                return
        self.answers.starved += self.counting

    async def _upload(self, slot: _Slot, due_s: float, *, counted: bool) -> None:
        """Send a rollout until there is a verdict, over whichever session is open."""
        body = self._rollouts.body(slot.leased, slot.version, self._loop.time() - slot.leased_at_s)
        upload, key = upload_of(body), (slot.leased.lease_id, slot.leased.sample_index)
        if counted:
            self.answers.sent_late_s.append(self._loop.time() - due_s)
        delays_s = self._delays_s()
        while True:
            verdict = await self._verdict(slot.peer, upload)
            if verdict is not None and verdict.reason != "busy":
                break
            await asyncio.sleep(next(delays_s))
        self.under_way -= 1
        slot.peer.slots.pop(key, None)
        if verdict.accepted:
            self._history.acknowledged(key, blake3(body).hexdigest())
            if counted:
                self.answers.latencies_s.append(self._loop.time() - due_s)
        elif counted:
            self.answers.refused[verdict.reason] += 1
        self._request_work(slot.peer)

    async def _verdict(self, peer: FleetPeer, upload: bytes) -> pb.RolloutVerdict | None:
        if peer.uploads is None:
            return None
        if peer.stream is None or peer.stream.is_over:
            peer.stream = UploadStream(peer.uploads())
        try:
            (reply,) = await peer.stream.exchange([upload], UPLOAD_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            self.answers.failed[error.code().name.lower()] += 1
            return None
        except RollcastError as error:
            if peer.uploads is not None:  # else the session ended under the upload
                self.answers.failed[error.reason] += 1
            return None
        return self._counted(pb.UploadReply.FromString(reply).verdicts[0])

    def _counted(self, verdict: pb.RolloutVerdict) -> pb.RolloutVerdict:
        if verdict.reason == "busy":
            self.answers.refused["busy"] += 1
        return verdict

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _hello(role: str, number: int, rng: random.Random) -> pb.PeerMessage:
    hello = pb.Hello(
        protocol=range_to_pb(),
        role=role,
        name=f"{role}-{number}",
        advertise=f"203.0.113.{number % 250}:{1024 + number % 60000}" if role == "origin" or rng.random() < 0.5 else "",
        concurrent_rollouts=1 if role == "peer" else 0,
        hardware="8 x CPU",
        region=f"region-{number % 5}",
        has_held_leases=True,
    )
    return pb.PeerMessage(hello=hello)


def _heartbeat(rng: random.Random) -> pb.Heartbeat:
    """Return a heartbeat as a peer sends it between two broadcasts: its uplink is known, and some links are open."""
    return pb.Heartbeat(
        state="generating",
        reason="",
        tokens_per_second=1000.0,
        chunk_bytes_from_peers=rng.randrange(1 << 30),
        uplink_bytes_per_second=rng.choice((2.0, 10.0, 50.0)) * MEGABYTE,
        uplink_measured_s=10.0,
        uplink_age_s=60.0,
        downlink_bytes_per_second=50.0 * MEGABYTE,
        uplink_probe_id=1,
        links=[
            pb.LinkReport(
                peer_id=f"12D3KooW{number:044d}",
                transport="direct",
                rtt_s=0.05,
                bytes_sent=1 << 20,
                bytes_received=1 << 20,
                sent_bytes_per_second=MEGABYTE,
                congestion_control="cubic",
            )
            for number in range(LINKS_REPORTED)
        ],
    )
