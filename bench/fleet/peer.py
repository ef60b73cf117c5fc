"""Run a peer without model, relay or spool: it requests work, waits as if it generated, and uploads until answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio

from bench.fleet.history import History
from peer.session.silence import AnswerWatch
from rollcast.runtime.errors import Unreachable
from rollcast.wire.joining.diagnose import failed_hop
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import connection_lost, open_channel
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc as pb_grpc
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.rollout_messages import segment_from_pb
from rollcast.wire.rollouts import prefix_digest
from rollcast.wire.token_ids import pack_ids

END_OF_STREAM: Any = cast(Any, grpc.aio).EOF  # missing in the type stubs
HEARTBEAT_S = 1.0
ANSWER_S = 2.0  # as the coordinator announces it at this interval
CALL_DEADLINE_S = 10.0
AGAIN_AFTER_S = (0.02, 0.1)  # range of the uniform wait before a retry, short because restarts are measured
PROBE_TIMEOUT_S = 2.0  # as in peer.session.session


@dataclass(frozen=True, slots=True)
class PeerShape:
    """The behaviour of one peer."""

    concurrent_rollouts: int = 16
    generate_s: float = 0.05  # mean of an exponential distribution


class SyntheticPeer:
    """One identity with one session at a time; ``compose`` returns the completion's token ids of a leased prompt."""

    def __init__(
        self,
        enrolment: Enrolment,
        shape: PeerShape,
        history: History,
        compose: Callable[[pb.Lease], list[int]],
        rng: random.Random,
    ) -> None:
        self._enrolment = enrolment
        self._shape = shape
        self._history = history
        self._compose = compose
        self._rng = rng
        self._under_way: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._version: pb.VersionHeld | None = None
        self._session: grpc.aio.StreamStreamCall[pb.PeerMessage, pb.CoordinatorMessage] | None = None
        self._stub: pb_grpc.CoordinatorStub | None = None
        self._sending = asyncio.Lock()
        self._watch = AnswerWatch(HEARTBEAT_S, ANSWER_S)
        self.accepted = 0
        self.sessions = 0
        """Sessions that were opened."""

    async def live(self) -> None:
        """Run one session after another, at each of the coordinators' addresses in turn, until cancelled."""
        addresses, turn = self._enrolment.grpc_addresses, 0
        try:
            while True:
                address = addresses[turn % len(addresses)]
                async with open_channel(address, self._enrolment.credentials) as channel:
                    session = asyncio.create_task(
                        self._one_session(pb_grpc.CoordinatorStub(channel))  # type: ignore[no-untyped-call]
                    )
                    turn += 1
                    try:
                        turn = await self._end_of(session, turn)
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        pass  # the coordinator cannot be reached
                    finally:
                        session.cancel()
                        await asyncio.gather(session, return_exceptions=True)
                        self._stub = self._session = None
                await asyncio.sleep(self._rng.uniform(*AGAIN_AFTER_S))
        finally:
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _end_of(self, session: asyncio.Task[None], turn: int) -> int:
        """Wait until the session ends or, while it is silent, another coordinator answers; return the next turn."""
        addresses = self._enrolment.grpc_addresses
        others = range(turn, turn + len(addresses) - 1)
        while not session.done():
            await asyncio.wait((session,), timeout=self._watch.tick_s)
            self._watch.tick()
            if self._watch.is_silent:
                for other in others:
                    tls = self._enrolment.credentials.ssl_client_context()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(PROBE_TIMEOUT_S):
                            if await failed_hop(addresses[other % len(addresses)], tls, reads_first=True) is None:
                                return other
        session.result()
        return turn

    async def _one_session(self, stub: pb_grpc.CoordinatorStub) -> None:
        session = stub.Session()
        hello = pb.Hello(
            protocol=range_to_pb(),
            role="peer",
            name=self._enrolment.peer_id[-8:],
            concurrent_rollouts=self._shape.concurrent_rollouts,
            has_held_leases=True,
            held_leases=sorted({lease_id for lease_id, _ in self._under_way}),
        )
        self._watch = AnswerWatch(HEARTBEAT_S, ANSWER_S)
        await session.write(pb.PeerMessage(hello=hello))
        beating: asyncio.Task[None] | None = None
        try:
            while (message := await session.read()) is not END_OF_STREAM:
                self._watch.message_received()
                if beating is None:
                    self._stub, self._session, self.sessions = stub, session, self.sessions + 1
                    beating = asyncio.create_task(self._beat())
                await self._receive(message)
        finally:
            if beating is not None:
                beating.cancel()
            session.cancel()

    async def _receive(self, message: pb.CoordinatorMessage) -> None:
        match message.WhichOneof("body"):
            case "announcement":
                await self._hold(pb.VersionRecord.FromString(message.announcement.record.payload))
            case "leases":
                for lease in message.leases.leases:
                    for slot in lease.slots:
                        key = (lease.lease_id, slot.sample_index)
                        if key not in self._under_way:
                            self._under_way[key] = asyncio.create_task(self._work(lease, slot))
            case "lease_revoke":
                revoked = set(message.lease_revoke.lease_ids)
                for key, task in self._under_way.items():
                    if key[0] in revoked:
                        task.cancel()

    async def _hold(self, record: pb.VersionRecord) -> None:
        """Report the announced version as held at once."""
        self._version = pb.VersionHeld(epoch=record.epoch, version=record.version)
        await self._send(version_held=self._version)
        await self._request_work()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S * self._rng.uniform(0.8, 1.2))
            if len(self._enrolment.grpc_addresses) > 1:
                self._watch.heartbeat_sent()
                await self._send(heartbeat=pb.Heartbeat(sequence=1))
            else:
                await self._send(heartbeat=pb.Heartbeat())
            await self._request_work()

    async def _request_work(self) -> None:
        free = self._shape.concurrent_rollouts - len(self._under_way)
        if free > 0 and self._version is not None:
            await self._send(work_request=pb.WorkRequest(free_slots=free))

    async def _send(self, **body: object) -> None:
        session = self._session
        if session is None:
            return
        async with self._sending:
            try:
                await session.write(pb.PeerMessage(**body))  # type: ignore[arg-type]
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                session.cancel()

    async def _work(self, lease: pb.Lease, slot: pb.Slot) -> None:
        key = (lease.lease_id, slot.sample_index)
        version = self._version
        assert version is not None
        try:
            took_s = self._rng.expovariate(1.0 / self._shape.generate_s)
            await asyncio.sleep(took_s)
            await self._upload(self._rollout(lease, slot, version.version, took_s))
        finally:
            del self._under_way[key]
        await self._request_work()

    def _rollout(self, lease: pb.Lease, slot: pb.Slot, version: int, took_s: float) -> pb.Rollout:
        tokens = self._compose(lease)
        prefix = [segment_from_pb(one) for one in slot.prefix]
        is_turn = any(not one.is_generated for one in prefix)
        segment = pb.Segment(
            role=pb.ASSISTANT,
            epoch=lease.epoch,
            version=version,
            peer_id=self._enrolment.peer_id,
            packed_ids=pack_ids(tokens),
            loss_mask=b"\x01" * len(tokens),
        )
        return pb.Rollout(
            lease_id=lease.lease_id,
            fencing_token=lease.fencing_token,
            group_id=lease.group_id,
            sample_index=slot.sample_index,
            segments=[segment],
            finish_reason=pb.STOP,
            generate_s=took_s,
            prefix_digest=prefix_digest(prefix) if is_turn else b"",
        )

    async def _upload(self, rollout: pb.Rollout) -> None:
        """Send a rollout until there is a verdict; until then only this peer has it."""
        while True:
            stub = self._stub
            if stub is not None:
                try:
                    with connection_lost("uploading a rollout"):  # its channel is closed when the session ends
                        upload = pb.RolloutUpload(rollouts=[rollout])
                        call = stub.UploadRollouts(iter([upload]), timeout=CALL_DEADLINE_S)
                        verdicts = [one async for reply in call for one in reply.verdicts]
                except (grpc.aio.AioRpcError, Unreachable):
                    pass  # only the answer may be lost, so the same rollout is sent again
                else:
                    (verdict,) = verdicts
                    if verdict.reason != "busy":
                        self.accepted += verdict.accepted
                        self._history.verdict(rollout, accepted=verdict.accepted, reason=verdict.reason)
                        return
            await asyncio.sleep(self._rng.uniform(*AGAIN_AFTER_S))
