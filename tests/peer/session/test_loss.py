"""Lose the session at each operation on its stream, in each way in which grpc.aio reports a loss.

The session's code is the real one; only the stream is a puppet, so that the moment of the loss can be chosen. Origins
and peers use the same class. What the learner's calls do is tested with tests.learner.dropping_coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import grpc
import pytest

from peer.session.session import END_OF_STREAM, Session, SessionSettings
from rollcast.runtime.waits import deadline
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb

RUN_ID = "run"
LEARNER_KEY = b"k" * 32
OPERATIONS = 6  # on the stream: write Hello, read Welcome, write a heartbeat, read, write another one, read

_NO_METADATA = grpc.aio.Metadata()
LOSSES: dict[str, Callable[[], BaseException | None]] = {
    "unavailable": lambda: grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, _NO_METADATA, _NO_METADATA, "gone"),
    "internal": lambda: grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, _NO_METADATA, _NO_METADATA, "reset"),
    "cancelled": asyncio.CancelledError,  # without any cancellation of the session's task
    "call over": lambda: asyncio.InvalidStateError("RPC already finished."),
    "end of stream": lambda: None,
}


class PuppetCall:
    """A stream that is lost at its ``lost_at``-th operation; None: it works."""

    def __init__(self, lost_at: int | None, loss: Callable[[], BaseException | None]) -> None:
        self._lost_at, self._loss = lost_at, loss
        self._operations = self._reads = 0
        self._over = asyncio.Event()
        self.works = asyncio.Event()  # a second heartbeat was written
        self._written: list[str] = []
        self._cython_call = self

    async def write(self, message: pb.PeerMessage) -> None:
        self._operate()
        self._written.append(message.WhichOneof("body"))
        if self._written.count("heartbeat") == 2:
            self.works.set()

    async def read(self) -> Any:
        self._operate()
        self._reads += 1
        if self._over.is_set():
            return END_OF_STREAM
        if self._reads == 1:
            return pb.CoordinatorMessage(
                welcome=pb.Welcome(
                    protocol=range_to_pb(),
                    run_id=RUN_ID,
                    learner_public_key=LEARNER_KEY,
                    heartbeat_interval_s=0.001,
                )
            )
        if self._reads == 2:
            return pb.CoordinatorMessage(banned=pb.Banned())
        await self._over.wait()
        return END_OF_STREAM

    def _operate(self) -> None:
        self._operations += 1
        if self._operations == self._lost_at:
            self._over.set()
            if (error := self._loss()) is not None:
                raise error

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def done_writing(self) -> None:
        self._over.set()

    def cancel(self, _reason: str = "") -> None:
        self._over.set()


class PuppetChannel:
    def __init__(self, call: PuppetCall) -> None:
        self._call = call

    async def __aenter__(self) -> PuppetChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()

    def stream_stream(self, _path: str, **_: Any) -> Callable[[], PuppetCall]:
        return lambda: self._call

    def unary_unary(self, _path: str, **_: Any) -> None:
        return None

    unary_stream = stream_unary = unary_unary


class Listener:
    def __init__(self) -> None:
        self.events: list[str] = []

    def opened(self, _welcome: pb.Welcome) -> None:
        self.events.append("opened")

    def lost(self, _reason: str) -> None:
        self.events.append("lost")

    def received(self, _message: pb.CoordinatorMessage) -> None:
        self.events.append("received")


async def survives(role: str, lost_at: int, loss: Callable[[], BaseException | None]) -> None:
    """Lose a session at this operation; the next one works, and the listener learns of each loss once."""
    calls = [PuppetCall(lost_at, loss), PuppetCall(None, loss)]
    unused, listener = iter(calls), Listener()

    async def no_failed_hop(_address: str) -> None:
        return None

    session = Session(
        SessionSettings(RUN_ID, LEARNER_KEY, ("coordinator:1",), 60.0, 60.0),
        open_channel=lambda _address: PuppetChannel(next(unused)),  # type: ignore[arg-type, return-value]
        failed_hop=no_failed_hop,
        hello=lambda: pb.Hello(protocol=range_to_pb(), role=role),
        heartbeat=pb.Heartbeat,
        listener=listener,
        random=Random(0),
    )
    running = asyncio.create_task(session.run())
    working = asyncio.create_task(calls[1].works.wait())
    async with deadline(60.0, f"a session after a loss at operation {lost_at}"):
        await asyncio.wait((running, working), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()  # raises what ended the session
        raise AssertionError(f"the session ended after a loss at operation {lost_at}")
    await session.close("the test is over")
    await running
    changes = [one for one in listener.events if one != "received"]
    assert changes in (["opened", "lost"], ["opened", "lost"] * 2), lost_at


@pytest.mark.parametrize("role", ["origin", "peer"])
@pytest.mark.parametrize("loss", LOSSES)
async def test_a_session_that_is_lost_at_any_moment_is_opened_again(role: str, loss: str) -> None:
    await asyncio.gather(*(survives(role, lost_at, LOSSES[loss]) for lost_at in range(1, OPERATIONS + 1)))
