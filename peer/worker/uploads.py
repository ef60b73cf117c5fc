"""Upload finished rollouts: one client stream each, answered by a verdict on every rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import grpc

from peer.worker.events import Verdict
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import LeaseId
from rollcast.wire.joining.grpc_client import connection_lost, translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from rollcast.wire.rollouts import Rollout, rollout_to_pb

MESSAGE_ROLLOUTS_MAX = 64  # rollouts in one message of the stream
MESSAGE_BYTES_MAX = 1 << 20  # a message is closed once it holds this much; far below gRPC's limit
UPLOAD_TIMEOUT_S = 30.0  # from the last message until all verdicts have come: the coordinator stores before it answers
BYTES_PER_SECOND_MIN = 128 << 10  # slowest sending that is waited for


class Uploader:
    """Sends rollouts on the session's connection."""

    def __init__(self, stub: Callable[[], rollcast_pb2_grpc.CoordinatorStub | None]) -> None:
        self._stub = stub

    async def upload(self, rollouts: Iterable[Rollout]) -> tuple[Verdict, ...]:
        """Send rollouts and wait for their verdicts.

        Raises:
            Unreachable: there is no session, or it ended before the verdicts came.
            RollcastError: the coordinator refused the call.
        """
        stub = self._stub()
        if stub is None:
            raise Unreachable("no session with the coordinator")
        messages = list(in_messages(rollouts))
        timeout_s = UPLOAD_TIMEOUT_S + sum(message.ByteSize() for message in messages) / BYTES_PER_SECOND_MIN
        try:
            with connection_lost("uploading rollouts"):  # the session closes its channel when it ends
                reply = await cast(Any, stub.UploadRollouts(iter(messages), timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise translate(error, "uploading rollouts") from None
        return tuple(
            Verdict(LeaseId(item.lease_id), item.sample_index, item.accepted, "" if item.accepted else item.reason)
            for item in reply.verdicts
        )


def in_messages(rollouts: Iterable[Rollout]) -> Iterator[pb.RolloutUpload]:
    """Pack rollouts in order into messages within both bounds; a message's last rollout may exceed the bytes."""
    batch: list[pb.Rollout] = []
    size_bytes = 0
    for rollout in rollouts:
        message = rollout_to_pb(rollout)
        batch.append(message)
        size_bytes += message.ByteSize()
        if len(batch) >= MESSAGE_ROLLOUTS_MAX or size_bytes >= MESSAGE_BYTES_MAX:
            yield pb.RolloutUpload(rollouts=batch)
            batch, size_bytes = [], 0
    if batch:
        yield pb.RolloutUpload(rollouts=batch)
