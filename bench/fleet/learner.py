"""Run a learner without a model: it takes one batch after another, announces tiny versions and repeats requests."""

from __future__ import annotations

import asyncio
import itertools
import random

import grpc
import grpc.aio

from bench.fleet.history import History
from rollcast.runtime.errors import ProcessFailed
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc as pb_grpc
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.records import VersionRecord, keyframe_manifest, sign_version
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table

CALL_DEADLINE_S = 10.0
BATCH_DEADLINE_S = 60.0  # deadline of a batch request, both waiting and transfer
BATCH_WAIT_S = 2.0
AGAIN_AFTER_S = (0.02, 0.1)
OLD_BATCH_SHARE = 0.2  # share of steps after which a random earlier batch is requested again
_STATE_BYTES = 64
_CHUNK_BYTES = 1024


class SyntheticLearner:
    """A learner that trains nothing and takes batches as fast as they come; see OLD_BATCH_SHARE."""

    def __init__(
        self,
        enrolment: Enrolment,
        identity: Identity,
        history: History,
        rng: random.Random,
        *,
        old_batch_share: float = OLD_BATCH_SHARE,
    ) -> None:
        self._enrolment = enrolment
        self._identity = identity
        self._history = history
        self._rng = rng
        self._old_batch_share = old_batch_share
        self._parent_hash = b""
        self.step = 0
        self.info: asyncio.Future[pb.RunInfo] = asyncio.get_running_loop().create_future()

    async def live(self) -> None:
        """Take steps until cancelled; a call that fails is retried at the next address, as a learner does."""
        for address in itertools.cycle(self._enrolment.grpc_addresses):
            async with open_channel(address, self._enrolment.credentials) as channel:
                try:
                    await self._steps(pb_grpc.CoordinatorStub(channel))  # type: ignore[no-untyped-call]
                except grpc.aio.AioRpcError as error:
                    if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
                        raise ProcessFailed("the learner was rejected", cause=str(error.details())) from None
            await asyncio.sleep(self._rng.uniform(*AGAIN_AFTER_S))

    async def describe(self) -> pb.RunInfo:
        """Return the run as the coordinator describes it to a learner."""
        async with open_channel(self._enrolment.grpc_address, self._enrolment.credentials) as channel:
            return await self._open(pb_grpc.CoordinatorStub(channel))  # type: ignore[no-untyped-call]

    async def _open(self, stub: pb_grpc.CoordinatorStub) -> pb.RunInfo:
        hello = pb.LearnerHello(protocol=range_to_pb(), learner_public_key=self._identity.public_key)
        info: pb.RunInfo = await stub.OpenLearner(hello, timeout=CALL_DEADLINE_S)
        return info

    async def _steps(self, stub: pb_grpc.CoordinatorStub) -> None:
        info = await self._open(stub)
        if not self.info.done():
            self.info.set_result(info)
        while True:
            record = self._record(info.run_id)
            manifest = keyframe_manifest(record, chunk_list(_state(self.step), _CHUNK_BYTES), _CHUNK_BYTES)
            announcement = sign_version(record, [manifest], self._identity)
            await stub.Announce(announcement, timeout=CALL_DEADLINE_S)
            while not await self._batch(stub, self.step):
                pass
            await stub.ReportStep(pb.StepReport(step=self.step + 1, values={"loss": 0.0}), timeout=CALL_DEADLINE_S)
            self._parent_hash = record.hash()
            self.step += 1
            if self._rng.random() < self._old_batch_share:
                await self._batch(stub, self._rng.randrange(self.step))

    def _record(self, run_id: str) -> VersionRecord:
        state = _state(self.step)
        return VersionRecord(
            run_id=RunId(run_id),
            epoch=Epoch(0),
            version=Version(self.step),
            parent_hash=self._parent_hash,
            state_hash=state_hash(state),
            state_size_bytes=len(state),
            tensors=tensor_table([("weights", "float32", (len(state) // 4,))]),
            model_json="{}",
        )

    async def _batch(self, stub: pb_grpc.CoordinatorStub, step: int) -> bool:
        """Request a batch; returns whether it was ready.

        Raises:
            ProcessFailed: the batch lacks rollouts.
        """
        request = pb.BatchRequest(step=step, wait_s=BATCH_WAIT_S)
        header: pb.BatchHeader | None = None
        rollouts: list[pb.TrainingRollout] = []
        async for part in stub.NextBatch(request, timeout=BATCH_DEADLINE_S):
            if part.HasField("header"):
                header = part.header
            rollouts.extend(part.rollouts)
        if header is None or not header.ready:
            return False
        if len(rollouts) != header.rollout_count:
            raise ProcessFailed(f"the batch of step {step} lacks rollouts that its header counts")
        self._history.batch(step, rollouts)
        return True


def _state(step: int) -> bytes:
    return step.to_bytes(_STATE_BYTES, "little")
