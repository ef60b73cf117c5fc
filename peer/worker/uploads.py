"""Upload finished rollouts over one stream, on which each message is answered by verdicts on its rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import grpc

from peer.worker.core.events import Verdict
from rollcast.runtime.errors import Unreachable, WaitTimedOut
from rollcast.wire.ids import LeaseId
from rollcast.wire.joining.grpc_client import connection_lost, end_call, translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.rollouts import Rollout

MESSAGE_ROLLOUTS_MAX = 64  # rollouts in one message of the stream
MESSAGE_BYTES_MAX = 1 << 20  # a message is closed once it holds this much; far below gRPC's limit
UPLOAD_TIMEOUT_S = 30.0  # from the last message until all verdicts have come: the coordinator stores before it answers
BYTES_PER_SECOND_MIN = 128 << 10  # slowest sending that is waited for
STREAM_IDLE_S = 30.0  # an open stream takes the coordinator some 20 KB: one without uploads is ended
DOING = "uploading rollouts"
_END_OF_STREAM: Any = cast(Any, grpc.aio).EOF  # missing in the type stubs


class Uploader:
    """Sends rollouts on the session's connection: over one stream as long as the session lasts."""

    def __init__(self, stub: Callable[[], rollcast_pb2_grpc.CoordinatorStub | None]) -> None:
        self._stub = stub
        self._stream: UploadStream | None = None
        self._streams_with: rollcast_pb2_grpc.CoordinatorStub | None = None  # what ``_stream`` was opened with

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
        if stub is not self._streams_with or self._stream is None or self._stream.is_over:
            self._stream, self._streams_with = UploadStream(cast(Any, stub).UploadRollouts()), stub
        try:
            replies = await self._stream.exchange(messages, timeout_s)
        except grpc.aio.AioRpcError as error:
            raise translate(error, DOING) from None
        return tuple(
            Verdict(LeaseId(item.lease_id), item.sample_index, item.accepted, "" if item.accepted else item.reason)
            for reply in replies
            for item in reply.verdicts
        )


class UploadStream:
    """One call of the method UploadRollouts, whose replies belong to its messages in order.

    It ends once no upload has begun for STREAM_IDLE_S. After an error, a timeout or a cancellation it is over too,
    because the replies that are still to come could not be told apart.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._writing, self._reading = asyncio.Lock(), asyncio.Lock()  # both serve those that wait in order
        self._is_connected = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._call_ended)
        self._in_progress = 0
        self._idle: asyncio.TimerHandle | None = None
        self.is_over = False

    async def exchange(self, messages: Sequence[Any], timeout_s: float) -> list[Any]:
        """Send messages, each as it is taken by the call, and return the reply to each.

        Raises:
            WaitTimedOut: they take longer than ``timeout_s``.
            Unreachable: the stream has ended, or the session under it.
            grpc.aio.AioRpcError: the other end refused the call, or the connection was lost.
        """
        complete = False
        self._in_progress += 1
        if self._idle is not None:
            self._idle.cancel()
        try:
            with connection_lost(DOING):
                async with asyncio.timeout(timeout_s):
                    replies = await self._exchange(messages)
            complete = True
            return replies
        except TimeoutError:
            raise WaitTimedOut(f"waited {timeout_s:.0f} s for the verdicts on an upload") from None
        finally:
            self._in_progress -= 1
            if not complete:
                self._end()
            elif not self._in_progress:
                self._idle = asyncio.get_running_loop().call_later(STREAM_IDLE_S, self._end)

    async def _exchange(self, messages: Sequence[Any]) -> list[Any]:
        async with self._writing:
            await self._connect()
            try:
                for message in messages:
                    await self._call.write(message)
            except asyncio.InvalidStateError:  # the call has ended, and a read tells why
                await self._read()
                raise Unreachable(f"the coordinator ended the stream while {DOING}") from None
        async with self._reading:
            return [await self._read() for _ in messages]

    def _end(self) -> None:
        self.is_over = True
        end_call(self._call)

    async def _connect(self) -> None:
        """Wait until the call is connected: a write would wait for that even once the call is cancelled (grpc 1.85)."""
        if self._is_connected:
            return
        connected = asyncio.ensure_future(self._call.wait_for_connection())
        try:
            await asyncio.wait((connected, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not connected.done():
                raise Unreachable(f"the connection to the coordinator was lost while {DOING}")
            await connected
        finally:
            connected.cancel()
        self._is_connected = True

    def _call_ended(self, _call: Any) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def _read(self) -> Any:
        reply = await self._call.read()
        if reply is _END_OF_STREAM:
            raise Unreachable(f"the coordinator ended the stream while {DOING}")
        return reply


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
