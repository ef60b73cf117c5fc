from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from coordinator.rpc.access import Messages, RoleGate
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.identity.identity import peer_id_of
from rollcast.wire.proto import rollcast_pb2 as pb

ALICE = peer_id_of(bytes(32))


class Aborted(Exception):
    pass


class Call:
    """A caller's end of a call: what it sends is counted as it is read."""

    def __init__(self, role: str, *sent: bytes) -> None:
        self._role = role
        self._sent = iter(sent)
        self.reads = 0
        self.answers: list[Any] = []

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_subject_alternative_name": [f"rollcast://run/{self._role}/{ALICE}".encode()]}

    def peer(self) -> str:
        return "ipv4:192.0.2.7:4242"

    async def read(self) -> Any:
        self.reads += 1
        return next(self._sent, grpc.aio.EOF)

    async def write(self, message: Any) -> None:
        self.answers.append(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code)


async def gated(method: str, handler: Any, refused: Counter[str] | None = None) -> Any:
    gate = RoleGate("run", learner_called=lambda: None)
    gate.refused = Counter() if refused is None else refused

    async def continuation(_details: Any) -> Any:
        return handler

    return await gate.intercept_service(continuation, SimpleNamespace(method=f"/rollcast.Coordinator/{method}"))


async def answer(request: pb.StepReport, _context: Any) -> int:
    return request.step


async def stream(request: pb.EvaluationRequest, context: Any) -> None:
    await context.write(request.seed)


UNARY = grpc.unary_unary_rpc_method_handler(answer, pb.StepReport.FromString)  # type: ignore[arg-type]
STREAMED = grpc.unary_stream_rpc_method_handler(stream, pb.EvaluationRequest.FromString)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "handler"), [("ReportStep", UNARY), ("HeldOut", STREAMED)])
async def test_nothing_is_read_from_a_caller_of_the_wrong_role(method: str, handler: Any) -> None:
    refused: Counter[str] = Counter()
    served = await gated(method, handler, refused)
    assert served.request_streaming  # else gRPC reads the message before it calls anything of ours
    behaviour = served.stream_stream if served.response_streaming else served.stream_unary
    call = Call("peer", bytes(1 << 20))
    with pytest.raises(Aborted, match="UNAUTHENTICATED"):
        await behaviour(None, call)
    assert call.reads == 0
    assert refused == {"wrong_key": 1}


async def test_a_call_with_one_message_gets_it() -> None:
    report = pb.StepReport(step=7)
    served = await gated("ReportStep", UNARY)
    assert await served.stream_unary(None, Call("learner", report.SerializeToString())) == 7
    for sent in ((), (b"\xff",)):
        with pytest.raises(Aborted, match="INVALID_ARGUMENT"):
            await served.stream_unary(None, Call("learner", *sent))
    call = Call("learner", pb.EvaluationRequest(seed=3).SerializeToString())
    await (await gated("HeldOut", STREAMED)).stream_stream(None, call)
    assert call.answers == [3]


class Parsed:
    pass


async def test_messages_are_kept_by_nobody_but_the_handler() -> None:
    made: list[weakref.ref[Parsed]] = []

    def parse(_data: bytes) -> Parsed:
        made.append(weakref.ref(one := Parsed()))
        return one

    messages = Messages(Call("peer", b"a", b"bb"), parse, 10)
    sizes = []
    async for message in messages:
        sizes.append(messages.newest_bytes)
        assert made[-1]() is message
        del message
        assert made[-1]() is None  # also while the call waits before the next message
    assert sizes == [1, 2]


async def test_a_message_beyond_the_limit_is_not_parsed() -> None:
    messages: AsyncIterator[Any] = Messages(Call("peer", bytes(11)), lambda _data: pytest.fail("parsed"), 10)
    with pytest.raises(MalformedMessage, match="at most 10 bytes"):
        await anext(messages)


async def test_a_caller_that_sends_no_message_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.rpc.access.MESSAGE_DEADLINE_S", 0.01)
    call = Call("learner")
    call.read = asyncio.Event().wait  # type: ignore[method-assign, assignment]
    with pytest.raises(Aborted, match="DEADLINE_EXCEEDED"):
        await (await gated("ReportStep", UNARY)).stream_unary(None, call)
