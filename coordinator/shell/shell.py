"""Carry out the core's decisions and feed the results back to it as events.

Everything happens on one asyncio loop: an event is applied completely, its actions in order, before the next one. Work
that takes time (the ledger, verifiers, the task's generator) runs asynchronously and comes back as an event. What
peers send is applied together with what others send, under load all that arrives within GATHER_S.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

import msgspec
import structlog

from coordinator.core.broadcast.problem import RelayProblem
from coordinator.core.causes import cause_of
from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.lifecycle import failure_of
from coordinator.core.events.actions import (
    Action,
    AnswerEpoch,
    AnswerUpload,
    BeginStage,
    CloseAttempt,
    CloseGroup,
    CommitTogether,
    DeliverRollout,
    DropTurns,
    FailRun,
    LiftQuarantine,
    Note,
    Penalise,
    PlanActivation,
    PlanRelays,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RecordGroup,
    RecordQuarantine,
    RecordVersionsKept,
    ScoreEvaluation,
    ScoreRollout,
    SendAnnouncement,
    ServeBatch,
    SetBudget,
    StoreEpisode,
    StoreRollout,
    StoreTurn,
    SupplyPrompts,
    TryAddress,
    WantWorker,
)
from coordinator.core.events.episode_events import (
    CloseEpisode,
    EpisodeAction,
    EpisodeFailed,
    OpenEpisode,
    StepEpisode,
)
from coordinator.core.events.evaluation_events import EvaluationAnswered, EvaluationScored, EvaluationUnscorable
from coordinator.core.events.events import (
    AnnouncedEncoding,
    ArrivalsBegan,
    ArrivalsEnded,
    BatchRecorded,
    EpochRecorded,
    Event,
    LearnerCalled,
    LearnerStatusChanged,
    MalformedRollout,
    PromptsSupplied,
    RelaysPlanned,
    RolloutReceived,
    RolloutScored,
    RolloutStored,
    RunEnded,
    ScoringFailed,
    StepFinished,
    Tick,
    TurnStored,
    VersionAnnounced,
)
from coordinator.core.events.profile_events import ProfileOrder, ProfileReport, ProfileReported
from coordinator.core.events.versions_kept import VERSIONS_KEPT
from coordinator.core.members.audit_book import AUDIT
from coordinator.core.members.learner_lives import LEARNER_LIVES, LearnerLives
from coordinator.core.status.turns import Turns
from coordinator.ledger.store import RunStore
from coordinator.metrics.broadcast import PEERS_LABELLED_MAX
from coordinator.metrics.sinks.sink import Sink
from coordinator.prompts.problems import Problems
from coordinator.prompts.samples import SampleBook
from coordinator.recovery.resume import AGE_SPLIT, ELAPSED_S, LEARNER_FINISHED, LEARNER_VALUES
from coordinator.relays.solver import RelaySolver
from coordinator.report.summary import step_metrics
from coordinator.shell.activation_solver import ActivationPlanner
from coordinator.shell.async_work import LEDGER_DEADLINE_S, AsyncWork
from coordinator.shell.batch_reader import BatchReader
from coordinator.shell.event_log import EventRows
from coordinator.shell.peer_sender import Announcements, PeerSender, ToPeer, announcement_message
from coordinator.shell.pending_calls import Answered, PendingCalls
from coordinator.shell.sessions import Sessions
from coordinator.verifiers.scorer import Failed, Verdict
from rollcast.runtime.errors import EpochOver, NotScored, RollcastError, RunFolderError
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import FencingToken, LeaseId, PeerId, Step, UploadId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Rollout, SegmentRole, observation
from rollcast.wire.versions.records import VerifiedVersion

REWARD_PART = "reward_part_"
"""Prefix of the mean of a named part of the rewards among a step's figures."""
GATHER_S = 0.02
"""Seconds between two rounds of what peers send; what comes later than that after the last round is applied with its
turn of the loop. What is decided together costs less, and the store takes about as long to make it durable."""
ARRIVED_MOST = 256
"""Events that are applied at once without waiting for the others of a round: some 10 ms of decisions."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")

log = structlog.get_logger()


class Shell:
    """Applies events to the core and carries out its actions.

    A failure of the coordinator or of its disk ends the run: see ``failure``.
    """

    def __init__(
        self,
        *,
        core: CoordinatorCore,
        ledger: RunStore,
        problems: Problems,
        sessions: Sessions,
        sink: Sink,
        clock: Callable[[], float],
        observe_answer_s: Callable[[float], None] = lambda seconds: None,
        refuses_uploads: Callable[[], bool] = lambda: False,
        learner_values: Mapping[str, float] | None = None,
        learner_lives: LearnerLives | None = None,
        record: Callable[[float, Event, Sequence[Action]], None] = lambda now, event, actions: None,
        samples: SampleBook | None = None,
        with_routes: bool = False,
    ) -> None:
        """Create a shell; its owner must ``close`` it.

        Args:
            sink: receives the metrics of steps.
            clock: monotonic seconds.
            observe_answer_s: receives the seconds that each upload waited for its answer.
            refuses_uploads: whether uploads are refused now, because the disk is almost full or the loop is late.
            learner_values, learner_lives: what the learner reported before this coordinator started.
            record: writes an event and its actions to the flight record.
            samples: keeps completions of evaluations for people to read.
            with_routes: whether rollouts have routes; see BatchReader.
        """
        self._core = core
        self._ledger = ledger
        self._problems = problems
        self._to_peers = PeerSender(sessions)
        self._sink = sink
        self.clock = clock
        self._async = AsyncWork(self._apply_result, self.fail, lambda: bool(self.ended_because))
        self._arrived: list[Event] = []  # that are to be applied together
        self._arrived_applied_at = float("-inf")  # the loop's time
        self._arrived_due: asyncio.Handle | None = None  # will apply them
        self._events: deque[Event] = deque()
        self._event: Event | None = None  # whose actions are being carried out
        self._applying = False
        self._calls = PendingCalls(self.apply, self.apply_soon, clock, observe_answer_s)
        self._announcements = Announcements(ledger)
        self._planner = ActivationPlanner()
        self._relay_solver = RelaySolver()
        self.batches = BatchReader(ledger, with_routes=with_routes)
        self._rows = EventRows(ledger, clock, self._async.when_durable)
        self._refuses_uploads = refuses_uploads
        self._learner_values = dict(learner_values or {})
        self._learner_lives = learner_lives or LearnerLives()
        self._record = record
        self.samples = samples
        self.on_want: Callable[[WantWorker], None] = lambda action: None
        self.on_budget: Callable[[SetBudget], None] = lambda action: None
        self.on_try: Callable[[TryAddress], None] = lambda action: None
        self.on_episode: Callable[[EpisodeAction], None] = self._fail_episode  # a pool of environments replaces it
        self.deliveries = asyncio.Event()  # set when a cell has a rollout for the head
        self.ended_because = ""
        self.ended_for_good = False
        self.finished = asyncio.Event()  # set when the learner reports that the run is done
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    # ---------------------------------------------------------------- events in

    def apply_soon(self, event: Event) -> None:
        """Apply what a peer sent together with what others send; only results of the core's own work overtake it."""
        self._arrived.append(event)
        if len(self._arrived) not in (1, ARRIVED_MOST):  # it is arranged already when they are applied
            return
        if self._arrived_due is not None:
            self._arrived_due.cancel()
        loop, next_at = asyncio.get_running_loop(), self._arrived_applied_at + GATHER_S
        due = len(self._arrived) == ARRIVED_MOST or loop.time() >= next_at
        self._arrived_due = loop.call_soon(self._apply_arrived) if due else loop.call_at(next_at, self._apply_arrived)

    def _apply_arrived(self) -> None:
        """Apply what has arrived; another event that takes it along leaves nothing for its timer to do too early."""
        arrived, self._arrived = self._arrived, []
        if self._arrived_due is not None:
            self._arrived_due.cancel()
        self._arrived_applied_at = asyncio.get_running_loop().time()
        if len(arrived) == 1:
            self._apply_all(arrived)
        else:
            self._apply_all([ArrivalsBegan(), *arrived, ArrivalsEnded()])

    def _apply_result(self, event: Event) -> None:
        """Apply an event about work that the core has ordered: it has no place among what peers send meanwhile."""
        self._apply_all([event])

    def apply(self, event: Event) -> None:
        """Apply an event to the core and carry out the actions that follow."""
        if self._arrived:
            self._apply_arrived()
        self._apply_all([event])

    def _apply_all(self, events: list[Event]) -> None:
        self._events += events
        if self._applying:  # an action caused this event: the loop below applies it later
            return
        self._applying = True
        try:
            while self._events:
                event = self._event = self._events.popleft()
                now = self.clock()
                actions = self._core.handle(event, now)
                self._record(now, event, actions)
                for action in actions:
                    self._carry_out(action)
        except Exception as error:  # a bug in the core or here: the state cannot be trusted any more
            self.fail(error)
        finally:
            self._applying = False

    def tick(self) -> None:
        """Tell the core that time passed."""
        self.apply(Tick(uploads_refused=self._refuses_uploads()))

    def fail(self, error: Exception) -> None:
        """End the run with this error; only the first error counts."""
        if not self.failure.done():
            if not isinstance(error, RollcastError):
                log.error("the coordinator failed", exc_info=error)
            self.failure.set_result(error)

    def upload(self, peer_id: PeerId, rollout: Rollout, answered: Answered) -> None:
        """Apply a received rollout; the answer comes once the rollout is durable or refused."""
        if self._refuses_uploads():
            answered(AnswerUpload(UploadId(0), rollout.lease_id, rollout.sample_index, False, "busy"))
            return
        end = self._problems.text_end(lambda: self._core.turn_so_far(rollout))
        self._calls.upload(lambda upload_id: RolloutReceived(upload_id, peer_id, rollout, end), answered)

    def expects(self, peer_id: PeerId, message: pb.Rollout) -> bool:
        """Return whether a peer holds the attempt of a rollout, so that its content has to be read."""
        return self._core.expects(peer_id, (LeaseId(message.lease_id), message.sample_index))

    def upload_malformed(self, peer_id: PeerId, message: pb.Rollout, problem: str, answered: Answered) -> None:
        """Apply an upload that is not a rollout.

        Its lease, token and sample are trusted only as far as they name an attempt of the sender.
        """
        lease_id, token = LeaseId(message.lease_id), FencingToken(message.fencing_token)
        self._calls.upload(
            lambda upload_id: MalformedRollout(upload_id, peer_id, lease_id, token, message.sample_index, problem),
            answered,
        )

    async def batch(self, step: Step, wait_s: float) -> ServeBatch | None:
        """Request the batch of a step; return None if it is not recorded within ``wait_s`` seconds."""
        return await self._calls.batch(step, wait_s)

    async def open_epoch(self, step: Step, common_version: Version | None) -> AnswerEpoch:
        """Open an epoch for a learner that reached another state than the published one.

        Raises:
            WaitTimedOut: the ledger takes too long.
        """
        return await self._calls.epoch(step, common_version)

    async def announce(self, verified: VerifiedVersion) -> bool:
        """Store a verified announcement, then apply it; return False if it was announced before.

        Raises:
            StoreError: another announcement of the same version is stored.
            EpochOver: the version belongs to an epoch that is over, or was orphaned by a newer one.
        """
        record = verified.record
        if not self._core.epochs.valid(record.epoch, record.version):
            raise EpochOver(
                f"version {record.version} of epoch {record.epoch} comes too late: epoch {self._core.epoch} has begun",
                cause="another learner continued this run",
                fix="stop this learner: only one may train a run",
            )
        async with deadline(LEDGER_DEADLINE_S, "the ledger to store an announcement"):
            first_time = await self._ledger.record_version(
                record.epoch, record.version, verified.announcement.SerializeToString(deterministic=True)
            )
        self._announcements.remember(record.epoch, record.version, verified.announcement)
        if first_time:
            log.info("version announced", version=record.version, state_bytes=record.state_size_bytes)
            encodings = tuple(
                AnnouncedEncoding(one.encoding_id, one.kind, one.base_version, one.size_bytes)
                for one in verified.manifests
            )
            self.apply(VersionAnnounced(record.epoch, record.version, verified.chunk_count_max, encodings))
        return first_time

    async def step_finished(self, event: StepFinished) -> None:
        """Record a finished step of the learner: the core counts it, the sinks and the ledger store its metrics.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot store it.
        """
        parts = await self._async.answer(self._ledger.batch_parts(Step(event.step - 1)), "the parts of rewards")
        figures = {f"{REWARD_PART}{_NOT_IN_NAMES.sub('_', name)}": mean for name, mean in parts.items()}
        event = replace(event, values={**event.values, **figures})
        self.apply(event)
        if event.audits:
            self._async.when_durable(self._ledger.set_meta(AUDIT, self._core.audit_json()))
        recorded = self._ledger.record_step(event.step, event.values)
        self._sink.write(event.step, step_metrics(self.exported_status(), event.values))
        await self._async.durable(recorded, "the figures of a step")

    async def learner_status(self, event: LearnerStatusChanged) -> None:
        """Apply the learner's phase. ``finished`` ends the run, and is durable before the learner is answered.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot store it.
        """
        self.apply(event)
        log.info("learner", phase=event.phase, detail=event.detail)
        if event.values:
            self._learner_values.update(event.values)
            self._async.when_durable(self._ledger.set_meta(LEARNER_VALUES, json.dumps(self._learner_values)))
            if self._learner_lives.observe(event.values, event.phase, event.detail):
                self._async.when_durable(self._ledger.set_meta(LEARNER_LIVES, self._learner_lives.to_json()))
        if event.phase == "finished":
            await self._async.durable(self._ledger.set_meta(LEARNER_FINISHED, "yes"), "that the learner has finished")
            self.finished.set()

    def profile_due(self, report: ProfileReport | None) -> ProfileOrder | None:
        """Take over the learner's report on its newest profile, and return the order that it must have now, if any."""
        if self._core.profile_due() is not None:
            self.apply(ProfileReported(report))
        return self._core.profile_due()

    def learner_value(self, name: str) -> float | None:
        """Return a value from the newest learner report that had it; None if none had."""
        return self._learner_values.get(name)

    def learner_called(self) -> None:
        """Note that the learner called, which shows that it is alive."""
        self.apply(LearnerCalled())

    def keep_sums(self) -> None:
        """Store sums that no table holds, so that a restarted coordinator continues them."""
        self._async.when_durable(self._ledger.set_meta(ELAPSED_S, f"{self._core.elapsed_s(self.clock()):.3f}"))
        self._async.when_durable(self._ledger.set_meta(AGE_SPLIT, json.dumps(self._core.age_split.to_json())))
        self._rows.write_left_out()

    def end_run(self, reason: str, *, final: bool) -> None:
        """End the run: stop all members. If it is ``final``, untrained rollouts are dropped and counted."""
        if not self.ended_because:
            self.ended_because, self.ended_for_good = reason, final
            self.apply(RunEnded(reason, final))
            self.keep_sums()

    # ---------------------------------------------------------------- questions

    @property
    def core(self) -> CoordinatorCore:
        """Return the core, for questions only: changes go through ``apply``."""
        return self._core

    def status(self) -> dict[str, Any]:
        """Return the run's status as JSON values, as every screen shows it."""
        return self._core.status(self.clock()).to_json()

    def exported_status(self) -> dict[str, Any]:
        """Return the status as metrics export it: members one by one only if each has series of its own."""
        core = self._core
        if len(core.state.members) <= PEERS_LABELLED_MAX:
            return self.status()
        status: dict[str, Any] = msgspec.to_builtins(core.run_status(self.clock()))
        return status

    def broadcast(self) -> Turns[dict[str, Any]]:
        """Return how far the newest version has spread, as JSON values, in turns."""
        status = yield from self._core.broadcast(self.clock())
        return status.to_json()

    def waiting_for(self) -> str:
        """Return the event that the run waits for, in words."""
        return self._core.waiting(self.clock()).text

    # ---------------------------------------------------------------- actions out

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, ToPeer):
            self._to_peers.send(action)
            return
        match action:  # the most frequent ones first
            case RecordAttempt():
                self._async.when_durable(self._ledger.record_attempt(action))
            case StoreRollout():
                self._async.when_durable(self._ledger.store_rollouts([action]), RolloutStored(action.rollout_id))
            case StoreTurn():
                rollout = action.rollout
                stored = TurnStored(rollout.lease_id, rollout.sample_index)
                self._async.when_durable(self._ledger.store_turn(action), stored)
            case DropTurns():
                self._async.when_durable(self._ledger.drop_turns(action))
            case StoreEpisode():
                self._store_episode(action)
            case CommitTogether():
                self._commit_together(action)
            case OpenEpisode() | StepEpisode() | CloseEpisode():
                self.on_episode(action)
            case AnswerUpload() | ServeBatch() | AnswerEpoch():
                self._calls.answer(action)
            case ScoreRollout():
                self._score(action)
            case ScoreEvaluation():
                self._async.start(self._score_evaluation(action))
            case DeliverRollout():
                self.deliveries.set()
            case SendAnnouncement():
                self._send_announcement(action)
            case CloseAttempt():
                self._async.when_durable(self._ledger.close_attempt(action))
            case WantWorker():
                self.on_want(action)
            case SetBudget():
                self.on_budget(action)
            case TryAddress():
                self.on_try(action)
            case PlanRelays():
                self._async.start(self._plan_relays(action.number, self._core.relay_problem))
            case PlanActivation():
                self._async.start(self._plan_activation(action))
            case SupplyPrompts():
                self._async.start(self._supply_prompts(action))
            case BeginStage():
                log.info("stage begun", number=action.number, from_step=action.from_step)
                self._problems.stage_began(action.number, action.from_step)
            case RecordGroup():
                problem = self._problems.sampled(action.problem_id)
                self._async.when_durable(self._ledger.record_group(action, problem.to_json()))
            case CloseGroup():
                self._async.when_durable(self._ledger.close_group(action))
            case RecordBatch():
                self._async.when_durable(self._ledger.record_batch(action), BatchRecorded(action.step))
                self.batches.recording(action.step)
            case RecordEpoch():
                self._async.when_durable(self._ledger.record_epoch(action), EpochRecorded(action.epoch))
            case RecordVersionsKept(kept):
                self._async.when_durable(self._ledger.set_meta(VERSIONS_KEPT, kept.to_json()))
            case RecordQuarantine():
                self._async.when_durable(self._ledger.record_quarantine(action))
            case LiftQuarantine(peer_id):
                self._async.when_durable(self._ledger.lift_quarantine(peer_id))
                self._async.when_durable(self._ledger.set_meta(AUDIT, self._core.audit_json()))  # it begins anew
            case Penalise():
                self._write_row(action.kind, action.peer_id, action.reason)
            case Note():
                self._write_row(action.kind, action.subject, action.detail)
            case FailRun():
                self.fail(failure_of(action))
            case _:
                assert_never(action)

    def _write_row(self, kind: str, subject: str, detail: str) -> None:
        assert self._event is not None
        self._rows.write(kind, subject, detail, cause_of(self._event))

    def _store_episode(self, action: StoreEpisode) -> None:
        problem = self._problems.rewarded(action.problem_id, action.reward)
        stored = self._ledger.store_episode(action, exact=action.reward >= 1.0, problem=problem)
        self._async.when_durable(stored, RolloutStored(action.rollout_id))

    def _commit_together(self, action: CommitTogether) -> None:
        problem = None
        for one in action.episodes:
            problem = self._problems.rewarded(one.problem_id, one.reward)
        committed = self._ledger.commit_together(action, problem=problem)
        self._async.when_durable(committed)
        for one in action.episodes:
            self._async.when_durable(committed, RolloutStored(one.rollout_id))

    def _fail_episode(self, action: EpisodeAction) -> None:
        """Answer for a coordinator without environments."""
        if not isinstance(action, CloseEpisode):
            self.apply(EpisodeFailed(action.episode, "this coordinator runs no environments", False))

    def _send_announcement(self, action: SendAnnouncement) -> None:
        epoch = self._core.epochs.epoch_of(action.version)
        if (announcement := self._announcements.in_memory(epoch, action.version)) is not None:
            self._to_peers.later(action.peer_ids, partial(announcement_message, announcement))
        else:
            self._async.start(self._send_stored_announcement(action))

    async def _send_stored_announcement(self, action: SendAnnouncement) -> None:
        announcement = await self._announcements.stored(action.version)
        self._to_peers.later(action.peer_ids, partial(announcement_message, announcement))

    async def _plan_relays(self, number: int, problem: RelayProblem | None) -> None:
        if problem is None:
            raise ValueError(f"relay plan {number} is asked for without a problem")
        begins_afresh = await self._relay_solver.solve(problem)
        if begins_afresh is not None:
            self.apply(RelaysPlanned(number, begins_afresh))

    async def _plan_activation(self, action: PlanActivation) -> None:
        self.apply(await self._planner.solve(action.problem))

    async def _supply_prompts(self, action: SupplyPrompts) -> None:
        self.apply(PromptsSupplied(await self._problems.sample(action.count, action.steps)))

    def _score(self, action: ScoreRollout) -> None:
        scored = self._problems.score(action.rollout_id, action.problem_id, action.packed_completion)
        self._async.when_done(scored, partial(self._scored, action))

    def _scored(self, action: ScoreRollout, verdict: Verdict) -> None:
        if isinstance(verdict, Failed):
            self._apply_result(ScoringFailed(action.rollout_id, verdict.reason, verdict.detail, verdict.retryable))
            return
        problem = self._problems.rewarded(action.problem_id, verdict.score.reward)
        # Before the event, which may lead to a recorded batch: the ledger keeps the order of the calls, and a batch
        # holds only scored rollouts.
        self._async.when_durable(self._ledger.record_score(action.rollout_id, verdict.score, problem))
        self._apply_result(RolloutScored(action.rollout_id, verdict.score.reward))

    async def _score_evaluation(self, action: ScoreEvaluation, again: pb.Completion | None = None) -> None:
        completion = again or pb.Completion(
            example_id=action.example_id,
            token_ids=action.completion_token_ids,
            turn_lengths=action.turn_lengths,
            sample_index=action.sample_index,
            keep=action.keep,
            version=action.key.version,
        )
        try:
            score = await self._problems.score_completion(completion, self.samples)
        except RunFolderError as error:  # people may read one sample less; the score counts all the same
            log.warning("sample not kept", version=action.key.version, cause=error.cause or error.what)
            completion.keep = False
            await self._score_evaluation(action, completion)
            return
        except NotScored as error:
            self.apply(EvaluationUnscorable(action.key, error.cause))
            return
        sample = (action.key, action.problem, action.sample_index)
        if score.goes_on:
            role: SegmentRole = "tool" if score.answered_by_tools else "user"
            self.apply(EvaluationAnswered(*sample, observation(role, tuple(score.answer_token_ids))))
        else:
            self.apply(EvaluationScored(*sample, score.reward, score.exact))

    async def close(self) -> None:
        """Cancel the work that is still in progress."""
        self._to_peers.close()
        await self._async.close()
        await self._relay_solver.close()
