"""Call the coordinator's gRPC service: retries, deadlines, and checks of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar, cast

import grpc
import structlog

from learner.coordinator.channels import Channels
from rollcast.runtime.errors import MalformedMessage, Unreachable, WrongKey
from rollcast.runtime.version import software_version
from rollcast.runtime.waits import backoff_delays_s, deadline
from rollcast.wire import limits, protocol
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import connection_lost, translate
from rollcast.wire.proto import rollcast_pb2 as pb

ResultT = TypeVar("ResultT")

CALL_TIMEOUT_S = 30.0  # seconds for one attempt; one that returns a long list goes on where it ended
BYTES_PER_SECOND_MIN = 8 << 20  # slowest sending of a batch's routes that is waited for
LONG_POLL_S = 10.0  # seconds for which the coordinator may hold one NextBatch before it answers why the batch waits

# CANCELLED is among them because a server that stops cancels the calls in flight.
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Batch:
    """The recorded batch of one step."""

    step: int
    replayed: bool
    rollouts: tuple[pb.TrainingRollout, ...]
    publish_every_steps: int = 0  # kappa from this step on; 0: kappa of the run's facts
    staleness_limit: int = 0  # the age up to which versions are to be kept from this step on; 0: the run's facts say
    unseen: tuple[pb.TrainingRollout, ...] = ()  # rollouts to be judged by their margins, and not to be trained on


@dataclass(frozen=True, slots=True)
class NotReady:
    """The batch is not complete yet."""

    waiting_for: str
    paused: bool = False  # by the operator, for as long as it takes


@dataclass(frozen=True, slots=True)
class NoFurtherBatch:
    """The operator ends the run: there is no batch for this step or a later one."""


class CoordinatorClient:
    """A client of the coordinator. All calls are idempotent, so each is retried while it is unreachable.

    Args:
        fresh: returns the enrolment, with a certificate that can open a connection now; called again after the
            coordinator was unreachable.
        learner_public_key: public key of the key that signs versions, 32 bytes.
        reconnect_timeout_s: seconds to retry while the coordinator is unreachable.
        random: source of the retries' jitter.

    Raises:
        WaitTimedOut: raised by every call if the coordinator stays unreachable.
        RollcastError: raised by every call if the coordinator refuses it.
    """

    def __init__(
        self,
        fresh: Callable[[], Awaitable[Enrolment]],
        learner_public_key: bytes,
        *,
        reconnect_timeout_s: float,
        random: Random,
    ) -> None:
        self._fresh = fresh
        self._channels = Channels()
        self._public_key = learner_public_key
        self._reconnect_timeout_s = reconnect_timeout_s
        self._random = random
        self._software = f"rollcast {software_version()}"
        self.was_away = False
        """Whether the newest attempt of a call did not reach the coordinator."""
        self._answered = False  # whether the coordinator has ever answered
        self._closed = False

    async def open(self) -> pb.RunInfo:
        """Open the learner's session, and return the run's facts with the origin's present address.

        Raises:
            ProtocolMismatch: the two sides speak different protocol versions.
        """
        return await self._retry("opening the learner's session", self._open_once)

    async def close(self) -> None:
        """Close the connection; calls in flight fail with Unreachable."""
        self._closed = True
        await self._channels.close()

    async def wait_for_origin(self, timeout_s: float) -> pb.RunInfo:
        """Wait until the origin has joined, and return the run's facts with its address.

        Raises:
            WaitTimedOut: the origin did not join within ``timeout_s``.
        """
        fix = 'start the origin (`rollcast peer` with role "origin") or see its log'
        async with deadline(timeout_s, "the origin to join the run", fix=fix):
            for delay_s in backoff_delays_s(self._random, first_s=0.2, most_s=2.0):
                info = await self.open()
                if info.origin_address:
                    return info
                await asyncio.sleep(delay_s)
        raise AssertionError("unreachable: the delays are endless")

    async def examples(self, count: int, *, flawed: bool, cursor: int) -> list[pb.Example]:
        """Return ``count`` labelled warm-start examples from position ``cursor`` of the (flawed) teacher's stream."""

        def rest(received: Sequence[pb.Example], timeout_s: float) -> AsyncIterator[pb.Example]:
            at = received[-1].example_id + 1 if received else cursor  # ids have gaps
            request = pb.ExamplesRequest(count=count - len(received), flawed=flawed, cursor=at)
            return cast(AsyncIterator[pb.Example], self._stub.Examples(request, timeout=timeout_s))

        return await self._in_parts(count, "warm-start examples", rest)

    async def held_out(self, count: int, name: str = "") -> list[pb.Example]:
        """Return up to ``count`` problems of an evaluation set; empty name: those held out of the training task."""
        request = pb.HeldOutRequest(count=count, set=name)
        return await self._retry(
            "asking for held-out problems",
            lambda: _at_most(count, "held-out problems", self._stub.HeldOut(request, timeout=CALL_TIMEOUT_S)),
        )

    async def score(self, completions: Iterable[pb.Completion]) -> list[pb.CompletionScore]:
        """Return verified scores of completions of held-out problems, in their order."""
        sent = list(completions)

        def rest(received: Sequence[pb.CompletionScore], timeout_s: float) -> AsyncIterator[pb.CompletionScore]:
            scores = self._stub.ScoreCompletions(iter(sent[len(received) :]), timeout=timeout_s)
            return cast(AsyncIterator[pb.CompletionScore], scores)

        return await self._in_parts(len(sent), "scores of completions", rest)

    async def evaluate(self, request: pb.EvaluationRequest) -> pb.EvaluationReply:
        """Return the state of an evaluation by the peers, which the first request begins."""
        return await self._retry(
            "asking for an evaluation", lambda: self._stub.Evaluate(request, timeout=CALL_TIMEOUT_S)
        )

    async def next_batch(
        self, step: int, *, rollouts: int, wait_s: float = LONG_POLL_S, routes_bytes: int = 0
    ) -> Batch | NotReady | NoFurtherBatch:
        """Return the batch of ``step`` with its ``rollouts`` rollouts, or after ``wait_s`` the reason for its delay.

        NoFurtherBatch means that the operator ends the run with the step before.

        routes_bytes: the most bytes that its routes may have, for which the call takes longer.
        """
        request = pb.BatchRequest(step=step, wait_s=wait_s)
        attempt_s = wait_s + routes_bytes / BYTES_PER_SECOND_MIN
        return await self._retry(
            f"asking for the batch of step {step + 1}",
            lambda: _read_batch(self._stub.NextBatch(request, timeout=attempt_s + CALL_TIMEOUT_S), step, rollouts),
            longest_attempt_s=attempt_s,
        )

    async def announce(self, announcement: pb.VersionAnnouncement) -> bool:
        """Announce a version that the origin holds durably. Return False if it was announced before."""
        reply = await self._retry(
            "announcing a version", lambda: self._stub.Announce(announcement, timeout=CALL_TIMEOUT_S)
        )
        return bool(reply.first_time)

    async def open_epoch(self, step: int, common_version: int | None) -> pb.EpochReply:
        """Open an epoch above every published version, because the state after ``step`` steps is not the published one.

        A repeated call gives the same answer.

        Args:
            common_version: the newest published version whose state the learner did reach; None: none.
        """
        request = pb.EpochRequest(
            step=step, has_common_version=common_version is not None, common_version=common_version or 0
        )
        reply: pb.EpochReply = await self._retry(
            "opening an epoch", lambda: self._stub.OpenEpoch(request, timeout=CALL_TIMEOUT_S)
        )
        if reply.step < step:
            raise MalformedMessage(
                f"the coordinator opens an epoch after step {reply.step}, before step {step}", fix=_BUG
            )
        return reply

    async def cell(self, report: pb.CellReport) -> pb.CellAnswer:
        """Report to the coordinator of a cell, in which this client has the learner's place, and return its answer."""
        answer: pb.CellAnswer = await self._retry(
            "reporting to the cell",
            lambda: self._stub.Cell(report, timeout=report.wait_s + CALL_TIMEOUT_S),
            longest_attempt_s=report.wait_s,
        )
        return answer

    async def report_step(self, step: int, values: Mapping[str, float], audits: Sequence[pb.RolloutAudit] = ()) -> None:
        """Report the metrics and the audited rollouts of the step after which ``step`` steps are complete."""
        report = pb.StepReport(step=step, values=dict(values), audits=audits)
        await self._retry("reporting a step", lambda: self._stub.ReportStep(report, timeout=CALL_TIMEOUT_S))

    async def report_status(
        self, phase: str, detail: str, values: Mapping[str, float], profile: pb.ProfileReport | None
    ) -> pb.ProfileOrder | None:
        """Report the learner's present phase, a text about it, metrics that belong to no step, and its newest profile.

        Returns:
            The profile that the coordinator waits for; None if there is none.
        """
        status = pb.LearnerStatus(phase=phase, detail=detail, values=dict(values), profile=profile)
        reply: pb.StatusReply = await self._retry(
            "reporting our status", lambda: self._stub.ReportStatus(status, timeout=CALL_TIMEOUT_S)
        )
        return _checked(reply.profile) if reply.HasField("profile") else None

    async def _open_once(self) -> pb.RunInfo:
        hello = pb.LearnerHello(
            protocol=protocol.range_to_pb(), software=self._software, learner_public_key=self._public_key
        )
        info: pb.RunInfo = await self._stub.OpenLearner(hello, timeout=CALL_TIMEOUT_S)
        protocol.agree_with(info.protocol)
        return info

    async def _in_parts(
        self, count: int, what: str, rest: Callable[[Sequence[ResultT], float], AsyncIterator[ResultT]]
    ) -> list[ResultT]:
        """Return a list of ``count`` messages, however long the coordinator takes for all of them.

        An attempt keeps what came within its timeout, and the next one asks for the rest. One in which nothing came
        gives the next twice the time: the coordinator may need longer for a first message than the timeout was.

        rest: asks for what is left after these messages, with a timeout in seconds.
        """
        received: list[ResultT] = []
        timeout_s = CALL_TIMEOUT_S

        async def part() -> None:
            nonlocal timeout_s
            before, given_s = len(received), timeout_s
            timeout_s = min(2.0 * given_s, self._reconnect_timeout_s)
            try:
                await _receive(count, what, rest(received, given_s), received)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AWAY or len(received) == before:
                    raise
                _log.info("a list comes in parts", what=what, received=len(received), wanted=count)
            timeout_s = CALL_TIMEOUT_S

        while len(received) < count:
            doing = f"asking for {what}, of which {len(received)} of {count} came"
            await self._retry(doing, part, longest_attempt_s=self._reconnect_timeout_s)
        return received

    async def _retry(
        self, doing: str, call: Callable[[], Awaitable[ResultT]], *, longest_attempt_s: float = 0.0
    ) -> ResultT:
        fix = "see that the coordinator runs and can be reached"
        async with deadline(self._reconnect_timeout_s + longest_attempt_s, f"the coordinator, {doing}", fix=fix):
            for delay_s in backoff_delays_s(self._random, most_s=5.0):
                stub = self._stub
                try:
                    if self.was_away or stub is None:
                        self._channels.connect(await self._fresh())
                        stub = self._stub
                    with connection_lost(doing):
                        if self.was_away and call != self._open_once:  # it may be a new process without our session
                            await self._open_once()
                            self.was_away = False
                        result = await call()
                    self._answered, self.was_away = True, False
                    self._channels.answered()
                    return result
                except grpc.aio.AioRpcError as error:
                    self._raise_unless_away(error, doing, stub)
                except Unreachable as error:  # no new certificate, or the call was cancelled on this side
                    if self._closed:
                        raise
                    self._note_away(doing, error.cause)
                await asyncio.sleep(delay_s)
        raise AssertionError("unreachable: the delays are endless")

    @property
    def _stub(self) -> Any:
        return self._channels.stub

    def _raise_unless_away(self, error: grpc.aio.AioRpcError, doing: str, stub: Any) -> None:
        translated = translate(error, doing)
        is_away = error.code() in _AWAY
        if is_away:
            self._channels.failed(stub, refused=isinstance(translated, WrongKey))
        # A handshake that fails after earlier ones succeeded means that the coordinator is starting or stopping.
        if not is_away or (self._channels.all_refuse and not self._answered):
            raise translated from None
        self._note_away(doing, error.code().name)

    def _note_away(self, doing: str, reason: str) -> None:
        if not self.was_away:
            _log.warning("coordinator unreachable", doing=doing, reason=reason)
        self.was_away = True


def check_key(info_key: bytes, our_key: bytes) -> None:
    """Check that the learner key in the invite is the key of this learner.

    Raises:
        WrongKey: it is another key.
    """
    if info_key != our_key:
        raise WrongKey(
            "the run expects versions signed with another key than ours",
            cause=f"the run's key starts {info_key.hex()[:16]}, ours {our_key.hex()[:16]}",
            fix="point identity_file at the run's learner key, or correct the coordinator's learner_public_key",
        )


def _checked(order: pb.ProfileOrder) -> pb.ProfileOrder:
    if not 1 <= order.steps <= limits.PROFILE_STEPS_MAX or len(order.profile_id) > limits.PROFILE_ID_LENGTH_MAX:
        raise MalformedMessage(f"the coordinator orders a profile of {order.steps} steps", fix=_BUG)
    return order


async def _at_most(count: int, what: str, stream: AsyncIterator[ResultT]) -> list[ResultT]:
    items: list[ResultT] = []
    await _take(count, what, stream, items)
    return items


async def _receive(count: int, what: str, stream: AsyncIterator[ResultT], items: list[ResultT]) -> None:
    """Append a stream's messages to ``items``, which must be ``count`` at its end."""
    await _take(count, what, stream, items)
    if len(items) != count:
        raise MalformedMessage(f"the coordinator sent {len(items)} of {count} {what}", fix=_BUG)


async def _take(count: int, what: str, stream: AsyncIterator[ResultT], items: list[ResultT]) -> None:
    async for item in stream:
        items.append(item)
        if len(items) > count:
            raise MalformedMessage(f"the coordinator sent more than the {count} {what} asked for", fix=_BUG)


async def _read_batch(
    stream: AsyncIterator[pb.BatchPart], step: int, expected: int
) -> Batch | NotReady | NoFurtherBatch:
    header: pb.BatchHeader | None = None
    rollouts: list[pb.TrainingRollout] = []
    unseen: list[pb.TrainingRollout] = []
    async for part in stream:
        if header is None and part.HasField("header") and not (part.rollouts or part.unseen):
            header = part.header
            continue
        rollouts.extend(part.rollouts)
        unseen.extend(part.unseen)
        unseen_max = 0 if header is None else min(header.unseen_count, expected)
        if header is None or part.HasField("header") or len(rollouts) > expected or len(unseen) > unseen_max:
            raise MalformedMessage(f"the batch of step {step + 1} has parts out of order or too many", fix=_BUG)
    if header is None or (header.ready and header.step != step):
        raise MalformedMessage(f"the coordinator did not answer with the batch of step {step + 1}", fix=_BUG)
    if not header.ready:
        if header.final:
            return NoFurtherBatch()
        return NotReady(header.waiting_for[:500] or "rollouts", header.paused)
    if not len(rollouts) == header.rollout_count == expected:
        raise MalformedMessage(
            f"the batch of step {step + 1} has {len(rollouts)} rollouts, its header announces {header.rollout_count}, "
            f"the run's configuration {expected}",
            fix=_BUG,
        )
    return Batch(
        step, header.replayed, tuple(rollouts), header.publish_every_steps, header.staleness_limit, tuple(unseen)
    )


_BUG = "this is a bug of the coordinator; please report it with its log"
