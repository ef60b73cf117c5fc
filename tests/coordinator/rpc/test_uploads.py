"""Test streams of uploads: a reply for each message in order, few messages that wait, and what ends a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from coordinator.core.events.actions import AnswerUpload
from coordinator.rpc import uploads
from coordinator.rpc.access import Messages
from coordinator.rpc.upload_limits import UploadRates
from coordinator.rpc.uploads import UNANSWERED_MAX, UploadCalls
from coordinator.shell.pending_calls import Answered
from rollcast.runtime.errors import MalformedMessage, RateLimited, WaitTimedOut
from rollcast.wire import limits
from rollcast.wire.identity.certificates import Caller
from rollcast.wire.ids import LeaseId, PeerId, RunId, UploadId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.token_ids import pack_ids

WAIT_S = 10.0
TURNS_MAX = 1000


@pytest.fixture(autouse=True)
def alice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "caller_of", lambda _context: Caller(RunId("run"), "peer", PeerId("alice")))


class Core:
    """Keeps the answers to uploads until a test gives them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Rollout, Answered]] = []

    async def invite_of(self, _peer_id: PeerId) -> str:
        return "invite"

    async def route_shape(self) -> None:
        return None

    def expects(self, _peer_id: PeerId, _message: pb.Rollout) -> bool:
        return True

    def upload(self, _peer_id: PeerId, rollout: Rollout, answered: Answered) -> None:
        self.waiting.append((rollout, answered))

    def answer(self, lease_id: int) -> None:
        """Accept the waiting rollout of this lease."""
        ((rollout, answered),) = [one for one in self.waiting if one[0].lease_id == lease_id]
        answered(AnswerUpload(UploadId(0), rollout.lease_id, rollout.sample_index, True, ""))


class Stream:
    """A stream in progress: what the peer sends, and the leases of each reply that it was sent."""

    def __init__(self, core: Core, rates: UploadRates = UploadRates()) -> None:  # noqa: B008
        self.replies: list[list[LeaseId]] = []
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self.calls = UploadCalls(cast(Any, core), rates)
        context = SimpleNamespace(peer=lambda: "ipv4:192.0.2.7:4242", write=self._write, read=self._sent.get)
        messages = Messages(context, pb.RolloutUpload.FromString, 1 << 20)
        self.served = asyncio.create_task(self.calls.UploadRollouts(messages, context))

    def send(self, *lease_ids: int) -> None:
        segment = pb.Segment(role=pb.ASSISTANT, peer_id="alice", packed_ids=pack_ids([5]), loss_mask=b"\1")
        made = [pb.Rollout(lease_id=one, segments=[segment], finish_reason=pb.STOP) for one in lease_ids]
        self._sent.put_nowait(pb.RolloutUpload(rollouts=made).SerializeToString())

    def end(self) -> None:
        self._sent.put_nowait(grpc.aio.EOF)

    async def _write(self, reply: pb.UploadReply) -> None:
        self.replies.append([LeaseId(one.lease_id) for one in reply.verdicts])


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not happen")


async def test_messages_are_answered_in_order_once_all_their_rollouts_have_verdicts() -> None:
    core = Core()
    stream = Stream(core)
    stream.send(1, 2)
    stream.send(3)
    await until(lambda: len(core.waiting) == 3)
    for lease_id in (3, 2):
        core.answer(lease_id)
        await asyncio.sleep(0)
    assert stream.replies == []
    core.answer(1)
    await until(lambda: len(stream.replies) == 2)
    assert stream.replies == [[1, 2], [3]]
    stream.send(4)
    stream.end()
    await until(lambda: len(core.waiting) == 4)
    core.answer(4)
    await asyncio.wait_for(stream.served, WAIT_S)
    assert stream.replies[2:] == [[4]]


async def test_few_messages_wait_for_their_verdicts() -> None:
    core = Core()
    stream = Stream(core)
    for lease_id in range(1, 20):
        stream.send(lease_id)
    await until(lambda: len(core.waiting) >= UNANSWERED_MAX)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(core.waiting) <= UNANSWERED_MAX + 2  # besides those that are being answered, and being handed over
    stream.served.cancel()
    await asyncio.gather(stream.served, return_exceptions=True)
    await until(lambda: len(asyncio.all_tasks()) == 1)  # nothing still waits for room among them


async def test_a_message_with_too_many_rollouts_ends_the_stream_after_the_replies_before_it() -> None:
    core = Core()
    stream = Stream(core)
    stream.send(1)
    stream.send(*range(2, limits.ROLLOUTS_PER_UPLOAD_MAX + 3))
    await until(lambda: len(core.waiting) == 1)
    core.answer(1)
    with pytest.raises(MalformedMessage, match="at most"):
        await asyncio.wait_for(stream.served, WAIT_S)
    assert stream.replies == [[1]]


async def test_a_stream_that_is_not_used_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MESSAGE_DEADLINE_S", 0.05)
    with pytest.raises(WaitTimedOut, match="the next message of a stream of uploads"):
        await asyncio.wait_for(Stream(Core()).served, WAIT_S)


async def test_streams_count_as_uploads_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "REFUSAL_S", 0.0)
    stream = Stream(Core(), UploadRates(calls_at_once=1))
    await asyncio.sleep(0)
    with pytest.raises(RateLimited):
        await stream.calls.UploadRollouts(cast(Any, None), SimpleNamespace(peer=lambda: "ipv4:192.0.2.7:4242"))
    stream.end()
    await asyncio.wait_for(stream.served, WAIT_S)
