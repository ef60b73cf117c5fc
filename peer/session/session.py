"""The control stream to the coordinator: one gRPC Session, reopened with backoff whenever it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, cast

import grpc
import structlog

from peer.session.coordinators import Coordinators
from peer.session.hello import LinkReporting
from peer.session.silence import AnswerWatch
from rollcast.runtime.errors import JoinRefused, MalformedMessage, RollcastError, Unreachable, WaitTimedOut, WrongKey
from rollcast.runtime.waits import backoff_delays_s, deadline
from rollcast.wire.joining.diagnose import HopFailed
from rollcast.wire.joining.error_json import error_from_json
from rollcast.wire.joining.grpc_client import connection_lost, end_call, translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from rollcast.wire.protocol import agree_with

log = structlog.get_logger()

END_OF_STREAM: Any = cast(Any, grpc.aio).EOF  # missing in the type stubs
OUTBOX_MAX = 1024  # queued messages; a stream with a backlog this long has stalled long before
WELCOME_TIMEOUT_S = 10.0  # from Hello to Welcome, connecting included
WRITE_TIMEOUT_S = 10.0  # a stream that accepts no message for this long counts as lost
FLUSH_TIMEOUT_S = 0.4  # share of a stopping peer's 2 s that the last messages and Goodbye may take
HOPS_TIMEOUT_S = 15.0  # to find out which hop to the coordinator failed
DELAY_MOST_S = 10.0  # between two attempts
# Where a run has several coordinators or gateways, another one serves within seconds of a loss: the first attempts
# follow each other more closely, for some 10 s.
SOON_DELAY_MOST_S = 1.0
SOON_ATTEMPTS = 20
REDIAL_SPREAD_MOST_S = 60.0  # whatever a coordinator asks for
PROBE_TIMEOUT_S = 2.0  # for another coordinator to answer while ours is silent
PROBE_DELAY_S = (0.2, 1.0)  # between two rounds of such probes: the first ceiling of the backoff, and the last
LAG_KEPT = 0.9  # share of the longest delay of a heartbeat that the next one still reports
# A retry does not help after these statuses; any other may come from a coordinator that is restarting.
FINAL_CODES = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class SessionListener(Protocol):
    """Receiver of the session's events. Its methods are called on the event loop and must not block."""

    def opened(self, welcome: pb.Welcome) -> None:
        """A session has opened with this welcome."""

    def lost(self, reason: str) -> None:
        """The open session has ended, for this reason."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """The coordinator has sent a message other than Welcome and Refused."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The run and the learner that the coordinator must name, its addresses, and how long to look for it.

    Args:
        addresses: host:port of one coordinator; tried in turn.
        join_timeout_s: seconds to open the first session; None: no limit.
        reconnect_timeout_s: seconds to open another one after a loss; None: no limit.
    """

    run_id: str
    learner_public_key: bytes
    addresses: tuple[str, ...]
    join_timeout_s: float | None
    reconnect_timeout_s: float | None


async def _nothing() -> None:
    pass


class Session:
    """Keep one stream to the coordinator open.

    Messages sent while no session is open are dropped, because a peer repeats its state when the next one opens; only
    accusations are kept.

    Args:
        open_channel: opens a gRPC channel to an address of the coordinator.
        failed_hop: finds out, after a failed attempt, which hop to that address fails; None: all hops work.
        hello: builds the first message of a session.
        heartbeat: builds the message that is sent at the coordinator's heartbeat interval.
        make_ready: awaited before each attempt; renews an expired certificate, for example.
    """

    def __init__(
        self,
        settings: SessionSettings,
        *,
        open_channel: Callable[[str], grpc.aio.Channel],
        failed_hop: Callable[[str], Awaitable[HopFailed | None]],
        hello: Callable[[], pb.Hello],
        heartbeat: Callable[[], pb.Heartbeat],
        listener: SessionListener,
        random: Random,
        make_ready: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.search = Coordinators(settings.addresses)
        self._settings = settings
        self._open_channel = open_channel
        self._failed_hop = failed_hop
        self._make_ready = make_ready
        self._hello = hello
        self._heartbeat = heartbeat
        self._listener = listener
        self._random = random
        self._outbox: deque[pb.PeerMessage] = deque()
        self._outbox_changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._stopped_by_coordinator = False
        self._redial_spread_s = 0.0
        self._ended = asyncio.Event()
        self.stub: rollcast_pb2_grpc.CoordinatorStub | None = None
        """Stub for calls on the open session's connection; None while no session is open."""

    def send(self, message: pb.PeerMessage) -> None:
        """Queue a message. Without an open session every message but an accusation is dropped."""
        if self.stub is None and message.WhichOneof("body") != "accusation":
            return
        if len(self._outbox) >= OUTBOX_MAX:
            log.warning("session outbox is full", message_kind=message.WhichOneof("body"))
            return
        self._outbox.append(message)
        self._outbox_changed.set()

    async def run(self) -> None:
        """Keep the session open until close() is called or the coordinator sends Stop.

        Raises:
            Unreachable: no session for join_timeout_s at startup, or for reconnect_timeout_s later; it names the hop.
            RollcastError: the coordinator refused this peer, with the reason that it gave.
        """
        try:
            await self._keep_open()
        finally:
            self._ended.set()

    async def close(self, reason: str) -> None:
        """Send the queued messages and Goodbye, then end the session, within FLUSH_TIMEOUT_S."""
        self.send(pb.PeerMessage(goodbye=pb.Goodbye(reason=reason)))
        self._closing.set()
        self._outbox_changed.set()
        with contextlib.suppress(WaitTimedOut):
            async with deadline(FLUSH_TIMEOUT_S, "the coordinator to accept the last messages of this peer"):
                await self._ended.wait()

    async def _keep_open(self) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = self._settings.join_timeout_s
        give_up_s = _after(loop.time(), timeout_s)
        delays = self._delays()
        while not self._closing.is_set():
            cause, was_open = await self._attempt()
            if self._stopped_by_coordinator or self._closing.is_set():
                return
            if was_open:
                timeout_s = self._settings.reconnect_timeout_s
                give_up_s, delays = _after(loop.time(), timeout_s), self._delays()
            else:
                await self._diagnose(cause, give_up_s)
            left_s = give_up_s - loop.time()
            if left_s <= 0.0:
                raise self._given_up(timeout_s or 0.0, cause)
            spread_s = self._random.uniform(0.0, self._redial_spread_s) if self._redial_spread_s else 0.0
            await self._pause(min(max(next(delays), spread_s), left_s))

    async def _diagnose(self, cause: str, give_up_s: float) -> None:
        """Find out which hop fails, and log each new problem once."""
        loop, address = asyncio.get_running_loop(), self.search.current
        try:
            async with asyncio.timeout(max(1.0, min(HOPS_TIMEOUT_S, give_up_s - loop.time()))):
                hop = await self._failed_hop(address)
        except TimeoutError:
            hop = None
        hop = hop or HopFailed("session", address, cause)
        if self.search.failed(hop, loop.time()):
            log.warning("no session with the coordinator", hop=hop.hop, address=address, reason=hop.reason, fix=hop.fix)

    def _given_up(self, timeout_s: float, cause: str) -> Unreachable:
        problems = self.search.problems()
        return Unreachable(
            f"no session with the coordinator at {' or '.join(self._settings.addresses)} for {timeout_s:g} s",
            cause="; ".join(map(str, problems)) or cause,
            fix=problems[0].fix if problems else "check that the coordinator runs and can be reached from here",
        )

    async def _attempt(self) -> tuple[str, bool]:
        """Hold one session from dial to end. Return why it ended and whether it had been open."""
        was_open = False
        try:
            await self._make_ready()
            async with self._open_channel(self.search.current) as channel:
                stub = rollcast_pb2_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
                call = cast(Any, stub.Session())
                try:
                    welcome = await self._shake_hands(call)
                    # Anything else in the outbox describes a state that Hello and the first heartbeat have replaced.
                    self._outbox = deque(m for m in self._outbox if m.WhichOneof("body") == "accusation")
                    self.stub, was_open = stub, True
                    self._redial_spread_s = _spread_s(welcome)
                    self.search.opened()
                    log.info("session opened", coordinator=welcome.software)
                    self._listener.opened(welcome)
                    cause = await self._exchange(call, welcome)
                finally:
                    end_call(call)
        except grpc.aio.AioRpcError as error:
            if error.code() in FINAL_CODES:
                raise translate(error, "opening a session with the coordinator") from None
            cause = f"{error.code().name}: {error.details()}"
        except (WaitTimedOut, Unreachable) as error:
            cause = error.what
        except asyncio.InvalidStateError as error:  # grpc.aio raises this for a write to a call that has ended
            cause = str(error)
        finally:
            self.stub = None
        if was_open:
            over = self._closing.is_set() or self._stopped_by_coordinator
            if over:  # how the stream broke off is of no interest then
                cause = "the coordinator ended it" if self._stopped_by_coordinator else "this process shuts down"
            log.log(logging.INFO if over else logging.WARNING, "session over" if over else "session lost", cause=cause)
            self._listener.lost(cause)
        return cause, was_open

    async def _shake_hands(self, call: Any) -> pb.Welcome:
        with connection_lost("opening the session"):
            async with deadline(WELCOME_TIMEOUT_S, "the coordinator's welcome"):
                await call.write(pb.PeerMessage(hello=self._hello()))
                message = await call.read()
        if message is END_OF_STREAM:
            await self._raise_status(call)
            raise Unreachable("the coordinator ended the session before its welcome")
        match message.WhichOneof("body"):
            case "refused":
                raise refusal(message.refused)
            case "welcome":
                self._check(message.welcome)
                return cast(pb.Welcome, message.welcome)
            case "stop":
                self._stopped_by_coordinator = True
                self._listener.received(message)
                raise Unreachable("the run ended while this peer had no session")
            case other:
                raise MalformedMessage(f"the coordinator's first message is {other!r}, not a welcome")

    def _check(self, welcome: pb.Welcome) -> None:
        agree_with(welcome.protocol)
        if welcome.run_id != self._settings.run_id:
            raise WrongKey(
                f"the coordinator serves the run {welcome.run_id!r}, our invite is for {self._settings.run_id!r}",
                fix="ask the operator for an invite to this run",
            )
        if welcome.learner_public_key != self._settings.learner_public_key:
            raise WrongKey(
                "the coordinator names another learner key than our invite",
                fix="ask the operator which key signs this run's versions; do not continue before you know",
            )
        if not welcome.heartbeat_interval_s > 0.0:
            raise MalformedMessage(f"a heartbeat interval of {welcome.heartbeat_interval_s} s")

    async def _exchange(self, call: Any, welcome: pb.Welcome) -> str:
        """Read and write until one of the two ends, or another coordinator answers while this one is silent.

        Return why, or raise what the reader or the writer raised.
        """
        interval_s = welcome.heartbeat_interval_s
        asks = welcome.answer_s > 0.0 and bool(self.search.others)
        watch = AnswerWatch(interval_s, welcome.answer_s) if asks else None
        reader = asyncio.create_task(self._read(call, watch), name="session-read")
        writer = asyncio.create_task(self._write(call, interval_s, watch), name="session-write")
        tasks = [reader, writer]
        if watch is not None:
            tasks.append(asyncio.create_task(self._other_answers(watch), name="session-watch"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() and not writer.done():
                return tasks[-1].result()
            if writer.done() and writer.exception() is None:
                # Goodbye is written: the coordinator ends the stream when it has read it.
                await asyncio.wait((reader,), timeout=FLUSH_TIMEOUT_S)
                return "closed by this peer"
            # The reader knows the status with which the stream ended, the writer only that it ended. But a write that
            # timed out has cancelled the call itself, and then only the writer knows the reason.
            await asyncio.wait((reader,), timeout=1.0)
            timed_out = writer.done() and isinstance(writer.exception(), WaitTimedOut)
            # No local name for the chosen task: like those deleted below, it would keep the connection alive.
            return (
                writer if timed_out or not reader.done() else reader
            ).result() or "the coordinator ended the session"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # An exception of theirs refers to this frame: the cycle would keep the connection.
            del reader, writer, tasks, task

    async def _other_answers(self, watch: AnswerWatch) -> str:
        """Wait until the coordinator is silent and another one answers; return why this session ends then.

        A standby does not listen before it leads. So a coordinator that is busy, or frozen without a successor, keeps
        its sessions, and thousands of members do not all reconnect because it was late.
        """
        delays = self._probe_delays()
        while True:
            await asyncio.sleep(watch.tick_s)
            watch.tick()
            if not watch.is_silent:
                delays = self._probe_delays()
                continue
            for address in self.search.others:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_TIMEOUT_S):
                        if await self._failed_hop(address) is None and watch.is_silent:
                            silent = self.search.current
                            self.search.move_to(address)
                            return f"{silent} does not answer heartbeats, and {address} answers"
            await asyncio.sleep(next(delays))

    async def _read(self, call: Any, watch: AnswerWatch | None) -> str:
        with connection_lost("reading from the session"):  # a write that times out cancels the call
            while (message := await call.read()) is not END_OF_STREAM:
                body = message.WhichOneof("body")
                if watch is not None:
                    watch.message_received()
                if body == "heartbeat_answer":
                    continue
                if body == "refused":
                    raise refusal(message.refused)
                if body == "stop":
                    self._stopped_by_coordinator = True
                self._listener.received(message)
            await self._raise_status(call)
        return "the coordinator ended the session"

    async def _raise_status(self, call: Any) -> None:
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            details = await call.details()
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, details)

    async def _write(self, call: Any, heartbeat_interval_s: float, watch: AnswerWatch | None) -> str:
        loop, numbers = asyncio.get_running_loop(), itertools.count(1)
        next_heartbeat_s, lag_s, links = loop.time(), 0.0, LinkReporting()
        while True:
            while self._outbox:
                await self._write_one(call, self._outbox.popleft())
            if self._closing.is_set():
                await call.done_writing()
                return "closed by this peer"
            if loop.time() >= next_heartbeat_s:
                lag_s = max(loop.time() - next_heartbeat_s, LAG_KEPT * lag_s)
                next_heartbeat_s = loop.time() + heartbeat_interval_s
                heartbeat = self._heartbeat()
                heartbeat.loop_lag_s = lag_s
                links.thin(heartbeat, loop.time())
                if watch is not None:
                    heartbeat.sequence = next(numbers)
                    watch.heartbeat_sent()
                await self._write_one(call, pb.PeerMessage(heartbeat=heartbeat))
            self._outbox_changed.clear()
            if not self._outbox and not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(next_heartbeat_s - loop.time()):
                        await self._outbox_changed.wait()

    async def _write_one(self, call: Any, message: pb.PeerMessage) -> None:
        with connection_lost("writing to the session"):
            async with deadline(WRITE_TIMEOUT_S, "the coordinator to accept a message"):
                await call.write(message)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _delays(self) -> Iterator[float]:
        if not self.search.others:
            return backoff_delays_s(self._random, first_s=0.2, most_s=DELAY_MOST_S)
        soon = backoff_delays_s(self._random, first_s=0.2, most_s=SOON_DELAY_MOST_S)
        later = backoff_delays_s(self._random, first_s=SOON_DELAY_MOST_S, most_s=DELAY_MOST_S)
        return itertools.chain(itertools.islice(soon, SOON_ATTEMPTS), later)

    def _probe_delays(self) -> Iterator[float]:
        first_s, most_s = PROBE_DELAY_S
        return backoff_delays_s(self._random, first_s=first_s, most_s=most_s)


def _after(now: float, seconds: float | None) -> float:
    return math.inf if seconds is None else now + seconds


def _spread_s(welcome: pb.Welcome) -> float:
    """Return over how many seconds the members of a run spread when all of them dial again."""
    asked_s = welcome.redial_spread_s
    return min(asked_s, REDIAL_SPREAD_MOST_S) if asked_s > 0.0 else 0.0  # a NaN is not above 0


def refusal(refused: pb.Refused) -> RollcastError:
    """Return the error with the code of the coordinator's refusal; JoinRefused where the code is unknown here."""
    fields = {"what": refused.what, "cause": "the coordinator refused this peer", "fix": refused.fix}
    error = error_from_json(json.dumps({"code": refused.code, **fields}))
    return error or error_from_json(json.dumps({"code": JoinRefused.code, **fields})) or JoinRefused("refused")
