"""Serve the learner's calls: the run's settings, problems, batches, announcements, and its reports."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog

from coordinator.core.events.audit_events import RolloutAudit, Unseen
from coordinator.core.events.evaluation_events import EvaluationKey
from coordinator.core.events.events import LearnerStatusChanged, StepFinished
from coordinator.core.events.profile_events import ProfileReport
from coordinator.core.leases.evaluation_book import Evaluation
from coordinator.ledger.store import BatchEntry, RunStore
from coordinator.prompts.problems import Problems
from coordinator.prompts.samples import SampleBook
from coordinator.rpc.sanitise import counter, text
from coordinator.shell.evaluations import Evaluations
from coordinator.shell.sessions import Sessions
from coordinator.shell.shell import Shell
from coordinator.tasks.evaluation_sets import HELD_OUT
from rollcast.runtime.errors import CheckpointError, MalformedMessage, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire import limits
from rollcast.wire.ids import GroupId, PeerId, RolloutId, RunId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import agree_with
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.versions.records import verify_announcement

log = structlog.get_logger()

BATCH_WAIT_S_MAX = 60.0
LEDGER_DEADLINE_S = 60.0
STREAM_WRITE_DEADLINE_S = 30.0
BATCH_PART_BYTES = 256 << 10  # of one message, approximately
COMPLETION_DEADLINE_S = 60.0  # between two completions of one call
SCORING_DEADLINE_S = 120.0  # for one completion, queueing included
COMPLETIONS_AT_ONCE = 256
COMPLETIONS_PER_CALL_MAX = 1 << 20
EXAMPLES_PER_CALL_MAX = 1 << 20
EVALUATION_SAMPLES_MAX = 1024  # of one problem
EXAMPLES_AT_ONCE = 256  # made in one go in the thread, where that takes no longer than EXAMPLES_S
EXAMPLES_S = 1.0
"""Seconds that examples may take which are made in one go: what a cancelled call had begun is made again."""
VALUES_MAX = 128
AUDITS_MAX = 1 << 17  # findings about one step: a batch has fewer rollouts
NATS_MAX = 1e9  # a margin; of a larger one only this is kept
VALUE_NAME_LENGTH_MAX = 64


class LearnerCalls:
    """Handles the learner's methods; RoleGate has checked the caller's role."""

    def __init__(
        self,
        *,
        run: pb.RunInfo,
        learner_public_key: bytes,
        shell: Shell,
        ledger: RunStore,
        problems: Problems,
        sessions: Sessions,
        samples: SampleBook | None,
        evaluations: Evaluations,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``run`` holds the fields of RunInfo that do not change during the run."""
        self._clock = clock
        self._samples = samples
        self._evaluations = evaluations
        self._run = run
        self._sampling = run.sampling
        self._learner_public_key = learner_public_key
        self._shell = shell
        self._ledger = ledger
        self._problems = problems
        self._sessions = sessions

    async def OpenLearner(self, hello: pb.LearnerHello, _context: Any) -> pb.RunInfo:
        """Return the run's settings and its state: newest version, recorded batches, epochs, the origin's address."""
        agree_with(hello.protocol)
        if hello.learner_public_key != self._learner_public_key:
            raise WrongKey(
                "this learner signs with another key than the run's",
                fix="set the coordinator's learner_public_key to what `rollcast identity FILE` prints",
            )
        info = pb.RunInfo()
        info.CopyFrom(self._run)
        async with deadline(LEDGER_DEADLINE_S, "the ledger to read the run's state"):
            info.recorded_batches = await self._ledger.recorded_batches()
            newest = await self._ledger.newest_version()
        core = self._shell.core
        info.staleness_limit, info.publish_every_steps = core.rules.kept.age_max, core.rules.publish_every_steps
        info.epoch = core.epoch
        info.epochs.extend(
            pb.EpochStart(epoch=one.epoch, step_from=one.step_from, step=one.step_to) for one in core.epochs.opened
        )
        if newest is not None:
            info.has_published = True
            info.newest_published_version = newest.version
            info.newest_announcement.ParseFromString(newest.announcement)
        for origin in self._sessions.of_role("origin"):
            # The learner dials directly; the first address is the direct one, libp2p's follow (peer/links/paths.py).
            info.origin_address, info.origin_peer_id = origin.address.partition(" ")[0], origin.peer_id
        log.info("learner opened the run", software=hello.software[: limits.TEXT_LENGTH_MAX])
        return info

    async def Examples(self, request: pb.ExamplesRequest, context: Any) -> None:
        """Stream labelled problems for the warm start, none of them held out."""
        if request.count > EXAMPLES_PER_CALL_MAX or request.cursor > limits.COUNTER_MAX:
            raise MalformedMessage(f"one call may request at most {EXAMPLES_PER_CALL_MAX} examples")
        left, cursor, at_once = request.count, request.cursor, 1
        while left:
            began_s = self._clock()
            examples = await self._problems.examples(min(left, at_once), flawed=request.flawed, cursor=cursor)
            fast = self._clock() - began_s < EXAMPLES_S / 2
            at_once = min(2 * at_once, EXAMPLES_AT_ONCE) if fast else max(at_once // 2, 1)
            await _write_all(context, examples)
            left -= len(examples)
            cursor = examples[-1].example_id + 1

    async def HeldOut(self, request: pb.HeldOutRequest, context: Any) -> None:
        """Stream problems that are never trained on, without their answers."""
        count, name = min(request.count, EXAMPLES_PER_CALL_MAX), request.set or HELD_OUT
        await _write_all(context, await self._problems.held_out(count, name))

    async def ScoreCompletions(self, completions: AsyncIterator[pb.Completion], context: Any) -> None:
        """Score answers to held-out problems, in the order in which they arrive."""
        running: asyncio.Queue[asyncio.Task[pb.CompletionScore] | None] = asyncio.Queue(COMPLETIONS_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_scoring(completions, running, group))
                while (task := await running.get()) is not None:
                    await _write_all(context, [await task])
        except BaseExceptionGroup as errors:  # RoleGate turns a single RollcastError into a status, not a group
            raise errors.exceptions[0] from None

    async def _start_scoring(
        self,
        completions: AsyncIterator[pb.Completion],
        running: asyncio.Queue[asyncio.Task[pb.CompletionScore] | None],
        group: asyncio.TaskGroup,
    ) -> None:
        for _ in range(COMPLETIONS_PER_CALL_MAX):
            async with deadline(COMPLETION_DEADLINE_S, "the learner's next completion"):
                completion = await anext(aiter(completions), None)
            if completion is None:
                break
            await running.put(group.create_task(self._score(completion)))
        await running.put(None)

    async def _score(self, completion: pb.Completion) -> pb.CompletionScore:
        if len(completion.token_ids) > limits.ROLLOUT_TOKENS_MAX:
            raise MalformedMessage("a completion is too long")
        async with deadline(SCORING_DEADLINE_S, "the verifiers to score a completion"):
            return await self._problems.score_completion(completion, self._samples)

    async def Evaluate(self, request: pb.EvaluationRequest, _context: Any) -> pb.EvaluationReply:
        """Return the state of an evaluation by the peers, which begins with the first request for it."""
        if not 1 <= request.samples <= EVALUATION_SAMPLES_MAX or request.problems > EXAMPLES_PER_CALL_MAX:
            raise MalformedMessage(f"an evaluation has 1 to {EVALUATION_SAMPLES_MAX} samples of each problem")
        if request.version > limits.COUNTER_MAX or not request.deadline_s > 0.0:
            raise MalformedMessage("an evaluation's version or deadline is out of range")
        key = EvaluationKey(
            request.set or HELD_OUT, Version(request.version), request.problems, request.samples, request.seed
        )
        return _evaluation_reply(await self._evaluations.ask(key, request.deadline_s))

    async def NextBatch(self, request: pb.BatchRequest, context: Any) -> None:
        """Stream the recorded batch of a step; after ``wait_s`` without one, report the reason for the wait."""
        step = Step(min(request.step, limits.COUNTER_MAX))
        if step > self._shell.core.recorded_batches:
            raise _ledger_is_older(step, self._shell.core.recorded_batches)
        wait_s = 0.0 if self._shell.core.is_last(step) else min(max(request.wait_s, 0.0), BATCH_WAIT_S_MAX)
        served = await self._shell.batch(step, wait_s)
        if served is None:
            core = self._shell.core
            header = pb.BatchHeader(step=step, ready=False, waiting_for=self._shell.waiting_for(), paused=core.paused)
            header.final = core.is_last(step)
            await _write_all(context, [pb.BatchPart(header=header)])
            return
        size, parts = await self._shell.batches.read(step)
        header = pb.BatchHeader(step=step, ready=True, rollout_count=size, replayed=served.replayed)
        rules = self._shell.core.rules
        header.publish_every_steps, header.staleness_limit = rules.publish_every_steps, rules.kept.age_max
        unseen = await self._unseen(served.unseen)
        header.unseen_count = len(unseen)
        await _write_all(context, [pb.BatchPart(header=header)])
        async for entries in parts:
            await _write_all(context, _batch_parts(map(self._training_rollout, entries)))
        for one in unseen:
            await _write_all(context, [pb.BatchPart(unseen=[one])])

    async def _unseen(self, chosen: Sequence[Unseen]) -> list[pb.TrainingRollout]:
        """Return the rollouts that the learner judges without training on them, as far as they are still kept."""
        if not chosen:
            return []
        entries = await self._shell.batches.read_rollouts([one.rollout_id for one in chosen if one.evaluated is None])
        for one in chosen:
            if one.evaluated is not None:
                prompt, seed, rollout = one.evaluated
                body = rollout_to_pb(rollout)
                entries.append(BatchEntry(one.rollout_id, GroupId(0), prompt, body, 0.0, exact=False, seed=seed))
        return [self._training_rollout(one) for one in entries]

    def _training_rollout(self, entry: BatchEntry) -> pb.TrainingRollout:
        return pb.TrainingRollout(
            rollout_id=entry.rollout_id,
            group_id=entry.group_id,
            sample_index=entry.rollout.sample_index,
            prompt_token_ids=entry.prompt_token_ids,
            segments=entry.rollout.segments,
            sampling=self._sampling,
            reward=entry.reward,
            finish_reason=entry.rollout.finish_reason,
            seed=entry.seed,
            agents=entry.agents,
        )

    async def Announce(self, announcement: pb.VersionAnnouncement, _context: Any) -> pb.AnnounceReply:
        """Verify the learner's signature, store the announcement, then let the core spread it to peers."""
        verified = verify_announcement(
            announcement, run_id=RunId(self._run.run_id), learner_public_key=self._learner_public_key
        )
        return pb.AnnounceReply(first_time=await self._shell.announce(verified))

    async def OpenEpoch(self, request: pb.EpochRequest, _context: Any) -> pb.EpochReply:
        """Open an epoch; the answer is durable, and the same for a repeated request."""
        if request.step > limits.COUNTER_MAX or request.common_version > limits.COUNTER_MAX:
            raise MalformedMessage("a step or version is out of range")
        common = Version(request.common_version) if request.has_common_version else None
        opened = await self._shell.open_epoch(Step(request.step), common)
        return pb.EpochReply(epoch=opened.epoch, step=opened.step)

    async def ReportStep(self, report: pb.StepReport, _context: Any) -> pb.Empty:
        """Record the metrics of one learner step."""
        step = Step(min(report.step, limits.COUNTER_MAX))
        if len(report.audits) > AUDITS_MAX:
            raise MalformedMessage(f"a step has findings about more than {AUDITS_MAX} rollouts")
        audits = tuple(map(_audit, report.audits))
        await self._shell.step_finished(StepFinished(step, _values(report.values), audits))
        return pb.Empty()

    async def ReportStatus(self, status: pb.LearnerStatus, _context: Any) -> pb.StatusReply:
        """Apply the learner's phase and profile, and return the profile it must have now; ``finished`` ends the run."""
        detail = status.detail[: limits.TEXT_LENGTH_MAX]
        order = self._shell.profile_due(_profile_report(status.profile) if status.HasField("profile") else None)
        await self._shell.learner_status(LearnerStatusChanged(status.phase[:64], detail, _values(status.values)))
        if order is None:
            return pb.StatusReply()
        return pb.StatusReply(
            profile=pb.ProfileOrder(profile_id=order.profile_id, steps=order.steps, python_tracer=order.python_tracer)
        )


def _audit(sent: pb.RolloutAudit) -> RolloutAudit:
    def nats(value: float) -> float:
        return value if value < NATS_MAX else NATS_MAX

    return RolloutAudit(
        rollout_id=RolloutId(counter(sent.rollout_id)),
        peer_id=PeerId(text(sent.peer_id, limits.PEER_ID_LENGTH_MAX)),
        tokens=counter(sent.tokens),
        beyond=counter(sent.beyond),
        far=counter(sent.far),
        worst_nats=nats(sent.worst_nats),
        bound_nats=nats(sent.bound_nats),
        worst_at=counter(sent.worst_at),
        sampler=text(sent.sampler, limits.TEXT_LENGTH_MAX),
        trained=sent.trained,
    )


def _profile_report(sent: pb.ProfileReport) -> ProfileReport:
    return ProfileReport(
        text(sent.profile_id, limits.PROFILE_ID_LENGTH_MAX),
        counter(sent.first_step) if sent.begun else None,
        min(sent.steps_done, limits.PROFILE_STEPS_MAX),
        sent.ended,
        text(sent.folder),
        counter(sent.size_bytes),
        text(sent.failure),
    )


def _evaluation_reply(found: Evaluation) -> pb.EvaluationReply:
    ended, samples = found.ended_at is not None, found.request.key.samples
    reply = pb.EvaluationReply(ended=ended, given_up=found.given_up, scored=found.scored)
    if found.done:
        for exact, rewards in zip(found.exact, found.rewards, strict=True):
            reply.scores.add(exact=exact, reward=rewards / samples)
    return reply


def _batch_parts(rollouts: Iterable[pb.TrainingRollout]) -> Iterator[pb.BatchPart]:
    """Pack rollouts into messages of about BATCH_PART_BYTES."""
    part, size_bytes = pb.BatchPart(), 0
    for rollout in rollouts:
        part.rollouts.append(rollout)
        size_bytes += rollout.ByteSize()
        if size_bytes >= BATCH_PART_BYTES:
            yield part
            part, size_bytes = pb.BatchPart(), 0
    if part.rollouts:
        yield part


def _ledger_is_older(step: Step, recorded: int) -> CheckpointError:
    return CheckpointError(
        f"the learner requests the batch of step {step + 1}, but the coordinator has recorded only {recorded} batches",
        cause="the coordinator's ledger is older than the learner's state",
        fix="restore the ledger and the checkpoint from the same time, or start a new run",
    )


def _values(values: Mapping[str, float]) -> dict[str, float]:
    """Check the bounds of named values and return them.

    Values that are not finite are kept: metrics.jsonl writes them as null.

    Raises:
        MalformedMessage: there are too many values, or a name is too long.
    """
    if len(values) > VALUES_MAX or any(len(name) > VALUE_NAME_LENGTH_MAX for name in values):
        raise MalformedMessage("a report has too many values, or names that are too long")
    bad = sorted(name for name, value in values.items() if not math.isfinite(value))
    if bad:
        log.warning("the learner reports figures that are not finite", figures=bad)
    return dict(values)


async def _write_all(context: Any, messages: Iterable[Any]) -> None:
    for message in messages:
        async with asyncio.timeout(STREAM_WRITE_DEADLINE_S):
            await context.write(message)
