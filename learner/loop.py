"""Run the RL loop: fetch a batch, check it, train on it, publish a version, save a checkpoint, report the step.

Publishing a version and writing a checkpoint overlap with waiting for the next batch and with training on it; two
versions, or two checkpoints, are never in flight at once. All jax work runs on one worker thread, so that the event
loop stays responsive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import structlog

from learner.alignment import audit
from learner.alignment.behaviour import BehaviourPlan, plan_behaviour
from learner.alignment.mismatch import compare, figures
from learner.alignment.sampling_check import SamplingWatch
from learner.audit.evidence import Evidence
from learner.audit.unseen import judge_unseen
from learner.checkpoints.async_save import Saves
from learner.checkpoints.checkpoint import HostState
from learner.config import AuditConfig, BehaviourSource, MismatchConfig, SamplingCheckConfig
from learner.coordinator.client import LONG_POLL_S, Batch, NoFurtherBatch, NotReady
from learner.coordinator.reporter import StatusReporter
from learner.evaluation.periodic import Evaluations
from learner.kill_points import kill_point
from learner.objective.config import ObjectiveConfig
from learner.publishing.epochs import Replay
from learner.publishing.publications import Publications
from learner.publishing.publisher import Publisher
from learner.publishing.versions import Freezing, RetainedVersions, no_longer_needed
from learner.step_profiler import StepProfiler
from learner.teacher.endpoint import TeacherEndpoint, laid_out
from learner.throughput import Throughput
from learner.training.batch_check import BatchRules, check_batch, signal_of
from learner.training.micro_batches import FloatArray
from learner.training.packing import PackedBatch, TrainingRow, pack
from learner.training.skipped_updates import SkippedUpdates
from learner.training.tracing import traced_step
from learner.training.trained_ids import TrainedIds
from learner.training.trainer import Trainer, behaviour_by_version
from learner.wall_time import StepTime, WallTime
from rollcast.policy.logprobs import TokenStatistics
from rollcast.policy.params import Params
from rollcast.runtime.errors import WaitTimedOut
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.proto import rollcast_pb2 as pb

ResultT = TypeVar("ResultT")

_log = structlog.get_logger()


class Coordinator(Protocol):
    """The part of the coordinator's client that the loop uses (learner.coordinator.client)."""

    async def next_batch(
        self, step: int, *, rollouts: int, wait_s: float = LONG_POLL_S, routes_bytes: int = 0
    ) -> Batch | NotReady | NoFurtherBatch: ...

    async def report_step(
        self, step: int, values: dict[str, float], audits: Sequence[pb.RolloutAudit] = ()
    ) -> None: ...

    async def open_epoch(self, step: int, common_version: int | None) -> pb.EpochReply: ...


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of the loop, from the learner's configuration and the run's facts."""

    steps: int  # the last step to train
    publish_every_steps: int  # kappa, unless a batch names another one
    checkpoint_every_steps: int
    checkpoint_every_s: float  # seconds of training
    keep_versions: int  # newest versions kept for behaviour log-probabilities
    batch_timeout_s: float
    objective: ObjectiveConfig
    completion_tokens_max: int
    stop_token_ids: tuple[int, ...]
    packed_row_tokens: int  # least length in tokens of rows that rollouts share; 0: one row per rollout
    rules: BatchRules
    behaviour: BehaviourSource
    audited_rollouts: int
    caches_kept: bool  # whether rollouts keep keys and values across versions
    mismatch: MismatchConfig
    sampling_check: SamplingCheckConfig
    audit: AuditConfig

    def checkpoints(self, step: int, unsaved_s: float) -> bool:
        """Return whether to save the state after ``step`` steps, with ``unsaved_s`` seconds of training not saved."""
        return step % self.checkpoint_every_steps == 0 or step == self.steps or unsaved_s >= self.checkpoint_every_s


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The components that the loop uses."""

    trainer: Trainer
    worker: Executor  # one thread for all jax work
    coordinator: Coordinator
    retained: RetainedVersions
    publisher: Publisher
    publications: Publications
    saves: Saves
    reporter: StatusReporter
    wall_time: WallTime
    evaluations: Evaluations
    skipped: SkippedUpdates
    evidence: Evidence
    profiler: StepProfiler
    teacher: TeacherEndpoint | None  # None: there is none, or the trainer holds it
    stop: asyncio.Event


@dataclass(slots=True)
class Position:
    """The learner's position: the part of a checkpoint that changes with every step, arrays aside."""

    step: int  # learner steps completed
    epoch: int
    newest_version: Version  # newest version that was frozen
    trained: TrainedIds  # ids of rollouts that were trained on


class TrainingLoop:
    """Run the learner's steps from ``position`` on, whose state is saved already.

    Args:
        host_state: builds the host part of a checkpoint for a position.
        replay: recorded batches and epochs of the run that lie ahead of the position.
    """

    def __init__(
        self,
        parts: LoopParts,
        settings: LoopSettings,
        host_state: Callable[[Position], HostState],
        position: Position,
        replay: Replay,
    ) -> None:
        self._at = position
        self._parts = parts
        self._settings = settings
        self._host_state = host_state
        self._replay = replay
        self._saved_step = position.step
        self._unsaved_s = 0.0  # seconds of training since then
        self._kappa = settings.publish_every_steps
        self._time = StepTime()
        self._throughput = Throughput(parts.trainer.model_config, list(parts.trainer.mesh.devices.flat))
        self._sampling = SamplingWatch(settings.sampling_check)
        platform = parts.trainer.mesh.devices.flat[0].platform
        self._bound = audit.bounds_for(parts.trainer.model_config, platform, settings.audit)
        self._findings: list[audit.Finding] = []  # of the last step
        self._warned_of_unseeded = False

    @property
    def step(self) -> int:
        """Return the number of learner steps completed."""
        return self._at.step

    async def run(self) -> bool:
        """Train until the last step is done (return True) or the process is asked to stop (False), and save the state.

        Raises:
            WaitTimedOut: no batch came in time.
            NotFinite: several updates in a row were skipped.
            RollcastError: a batch breaks the rules, or publishing or saving failed.
        """
        self._time = StepTime()
        async with self._parts.profiler:
            await self._steps()
        done = self.step >= self._settings.steps
        if done:
            await self._parts.publications.finish()
            await self._parts.evaluations.finish()
        await self.save()
        return done

    async def _steps(self) -> None:
        """Train until the last step is done or the process is asked to stop."""
        while self.step < self._settings.steps and not self._parts.stop.is_set():
            await self._follow_epochs()
            if self.step >= self._settings.steps:
                break
            kill_point("before_batch")
            with self._time.part("wait_s"), self._parts.evaluations.idle():
                batch = await self._next_batch()
            if batch is None:
                break
            if isinstance(batch, NoFurtherBatch):
                await self._end_here()
                break
            await self._parts.profiler.step_begins(self.step + 1)
            await self._do_step(batch)
            await self._parts.profiler.step_ended()

    async def _end_here(self) -> None:
        """Take the step before for the last one, because the operator ends the run: its policy becomes a version."""
        _log.info("the operator ends the run", step=self.step, steps=self._settings.steps)
        self._settings = replace(self._settings, steps=self.step)
        if self._at.newest_version < self.step:
            await self._checkpoint(await self._publish())

    async def save(self) -> None:
        """Save the current state if it is not saved yet, and wait until it is durable."""
        if self._saved_step != self.step:
            await self._start_checkpoint()
        await self._parts.saves.finish()

    # ---------------------------------------------------------------- epochs

    async def _follow_epochs(self) -> None:
        """Enter the epoch that the run entered at this step, or open one if repeated steps gave other weights.

        The weights are compared only once all recorded batches have been replayed: until then the run's own epochs
        come first.
        """
        if (start := self._replay.jump(self.step)) is not None:
            await self._enter_epoch(start.epoch, start.step)
        elif self._replay.ends(self.step):
            await self._parts.publications.finish()  # this compares the weights with the published ones
            if self._parts.publisher.diverged:
                # A version that was signed may be known to peers: its number must not be used for other weights.
                await self._parts.publisher.publish_kept(until=self._parts.publisher.newest_known)
                common = self._parts.publisher.common_version
                opened = await self._parts.coordinator.open_epoch(self.step, common)
                if opened.epoch == self._at.epoch:  # batches were recorded meanwhile, and are replayed first
                    self._replay.extend(opened.step)
                    return
                _log.warning("epoch opened", epoch=opened.epoch, step=opened.step, newest_common_version=common)
                await self._enter_epoch(opened.epoch, opened.step)

    async def _enter_epoch(self, epoch: int, step: int) -> None:
        kill_point("epoch_opened")
        await self._parts.publications.finish()
        first = Version(step)
        self._parts.publisher.enter_epoch(Epoch(epoch), first)
        self._at.step, self._at.epoch, self._at.newest_version = step, epoch, first
        snapshot = await self._on_worker(lambda: self._freeze(first))
        if not self._parts.publisher.knows(first):
            # Saved before the epoch's first version is published, so that a learner that crashes now resumes in it.
            await self._start_checkpoint()
            await self._parts.saves.finish()
        await self._parts.publications.start(first, snapshot)

    # ---------------------------------------------------------------- one step

    async def _do_step(self, batch: Batch) -> None:
        kill_point("batch_received")
        if batch.replayed:
            kill_point("batch_replayed")
        self._kappa = batch.publish_every_steps or self._settings.publish_every_steps
        self._keep_versions_for(batch.staleness_limit)
        self._parts.reporter.update("training", f"step {self.step + 1:,} of {self._settings.steps:,}")
        rows = check_batch(batch.rollouts, self.step, self._settings.rules, self._at.trained)
        with self._time.part("behaviour_s"):
            taught = None if self._parts.teacher is None else await self._parts.teacher.score(rows)
        began_s = time.monotonic()
        values = await self._on_worker(lambda: traced_step(self.step + 1, lambda: self._train(rows, taught)))
        if batch.unseen:
            self._findings += await self._on_worker(lambda: self._judge(batch.unseen))
        self._unsaved_s += time.monotonic() - began_s
        kill_point("gradient_done")
        for row in rows:
            self._at.trained.add(row.rollout_id)
        self._at.step += 1
        kill_point("step_counted")
        if skipped := self._parts.skipped.figures():  # as values of the status, they are in checkpoints too
            self._parts.reporter.add(**skipped)
        with self._time.part("publish_s"):
            published = await self._publish()
        with self._time.part("checkpoint_s"):
            await self._checkpoint(published)
        if not batch.replayed:  # the earlier life of this learner evaluated after replayed steps
            publications = self._parts.publications
            kept, announced = publications.kept(), publications.announced()
            self._parts.evaluations.step_done(self.step, self._at.newest_version, kept, announced)
        await self._report_step(values | self._parts.evaluations.take_figures() | skipped, rows, batch)

    async def _report_step(self, values: dict[str, float], rows: list[TrainingRow], batch: Batch) -> None:
        """Report a step that is done: its figures, its times, and what was found about the rollouts of its batch."""
        values |= signal_of(rows, self._settings.completion_tokens_max, self._settings.stop_token_ids)
        values |= {
            "published_in_s": self._parts.publications.last_s,
            "version": float(self._at.newest_version),
            "epoch": float(self._at.epoch),
            "replayed": float(batch.replayed),
        }
        values |= self._time.end()
        lengths = [row.tokens for row in rows]
        passes = self._settings.objective.epochs_per_batch
        values |= self._throughput.figures(lengths, values["train_s"], passes=passes)
        self._parts.wall_time.spent("replay" if batch.replayed else "steps")
        self._parts.reporter.note(**self._parts.wall_time.figures())
        kill_point("before_report")
        trained = {row.rollout_id for row in rows} - {one.rollout_id for one in self._findings if one.beyond}
        audits = [one.to_pb(trained=one.rollout_id in trained) for one in self._findings]
        await self._parts.coordinator.report_step(self.step, values, audits)
        kill_point("reported")

    def _keep_versions_for(self, staleness_limit: int) -> None:
        """Keep versions up to this age from now on: the coordinator uses none that is older than was kept before."""
        settings = self._settings
        if staleness_limit > settings.rules.staleness_limit:
            _log.info("keeping versions for longer", staleness_limit=staleness_limit)
            self._parts.retained.map_at_least(staleness_limit + 2)
            self._settings = replace(
                settings,
                rules=replace(settings.rules, staleness_limit=staleness_limit),
                keep_versions=max(settings.keep_versions, staleness_limit + 2),
            )

    def _train(self, rows: list[TrainingRow], taught: list[FloatArray] | None) -> dict[str, float]:
        trainer, packed = self._parts.trainer, self._packed(rows)
        teacher = None if taught is None else laid_out(packed, taught)
        plan = self._plan(rows, packed)
        with self._time.part("behaviour_s"):
            recomputed = behaviour_by_version(trainer, packed, self._params_of, plan.recomputed)
        kill_point("behaviour_done")
        behaviour = plan.for_loss(recomputed)
        bounds = audit.lay_out_bounds(rows, packed, self._bound)
        packed = audit.without_beyond(packed, np.asarray(recomputed.margins), bounds, plan.recomputed)
        with self._time.part("train_s"):
            values = trainer.train_step(packed, behaviour, plan.on_policy, bounds, teacher)
        self._parts.skipped.step_done(self.step + 1, rows, packed, behaviour, values)
        own = trainer.step_statistics(packed) if plan.own.any() else None
        known = plan.known(recomputed, own)
        self._findings = audit.findings(rows, packed, np.asarray(known.margins), bounds)
        self._parts.evidence.add(self.step + 1, rows, packed, np.asarray(known.margins), bounds)
        values |= audit.figures(self._findings, packed, bounds)
        if values["audit_refused_share"] > 0.0 and not self._warned_of_unseeded:
            self._warned_of_unseeded = True
            _log.warning("rollouts of engines without seeds are left out", fix="set audit.allow_unseeded for own peers")
        return values | self._alignment(rows, packed, plan, known)

    def _judge(self, unseen: Sequence[pb.TrainingRollout]) -> list[audit.Finding]:
        """Judge rollouts on which the learner does not train."""
        parts, rules = self._parts, self._settings.rules
        row_tokens = max(rules.row_tokens, self._settings.packed_row_tokens)
        given = (self.step + 1, unseen, parts.trainer, parts.retained, parts.evidence)
        with self._time.part("behaviour_s"):
            return judge_unseen(*given, rules=rules, row_tokens=row_tokens, bound=self._bound)

    def _packed(self, rows: list[TrainingRow]) -> PackedBatch:
        shared = self._settings.packed_row_tokens
        return pack(
            rows,
            time=max(self._settings.rules.row_tokens, shared),
            objective=self._settings.objective,
            completion_tokens_max=self._settings.completion_tokens_max,
            shared=shared > 0,
            routes=self._settings.rules.routes,
        )

    def _plan(self, rows: list[TrainingRow], packed: PackedBatch) -> BehaviourPlan:
        return plan_behaviour(
            rows,
            packed,
            self._settings.behaviour,
            own_version=self._own_version() if self._parts.trainer.scores_on_policy else None,
            step=self.step,
            audited_rollouts=self._settings.audited_rollouts,
            caches_kept=self._settings.caches_kept,
        )

    def _alignment(
        self, rows: list[TrainingRow], packed: PackedBatch, plan: BehaviourPlan, known: TokenStatistics
    ) -> dict[str, float]:
        """Return the figures about reports and sampling, of the tokens that the learner scored itself."""
        compared = compare(rows, packed, np.asarray(known.logprobs), plan.own | plan.recomputed)
        tokens, reported = (int(np.count_nonzero(leaf)) for leaf in (packed.loss_mask, plan.has_report))
        mismatch = figures(compared, tokens=tokens, reported=reported, config=self._settings.mismatch)
        routes = {} if packed.routes is None else {"routes_share": packed.routes_share()}
        return mismatch | self._sampling.figures(rows, packed, known) | routes | {"tokens": float(tokens)}

    def _own_version(self) -> int | None:
        """Return the version whose parameters are being trained; None if the newest version is older.

        Nor is there one where repeated training gave other weights than the run published under this number.
        """
        current = self._at.newest_version == self.step and not self._parts.publisher.diverged
        return self._at.newest_version if current else None

    def _params_of(self, version: int) -> Params:
        return self._parts.retained.host_params(Version(version), self._parts.trainer.model_config)

    def _publishes(self) -> bool:
        """Return whether the policy becomes a version now; that of the last step always does.

        For repeated steps the versions that an earlier life published decide: kappa may have been another then.
        """
        publisher = self._parts.publisher
        if self._replay.epoch_ahead:
            return self.step <= publisher.newest_announced and publisher.knows(Version(self.step))
        if self.step <= publisher.newest_known:
            return publisher.knows(Version(self.step))
        return self.step == self._settings.steps or self.step - self._at.newest_version >= self._kappa

    async def _publish(self) -> bool:
        if not self._publishes():
            return False
        await self._parts.publications.finish()  # at most one copy of the parameters is on the devices
        snapshot = await self._on_worker(lambda: self._freeze(Version(self.step)))
        kill_point("snapshot_taken")
        await self._parts.publications.start(Version(self.step), snapshot)
        self._at.newest_version = Version(self.step)
        return True

    def _freeze(self, version: Version) -> Freezing:
        return self._parts.retained.freeze(version, self._parts.trainer.begin_freeze)

    async def _checkpoint(self, published: bool) -> None:
        if self._settings.checkpoints(self.step, self._unsaved_s):
            await self._start_checkpoint()
        elif published:
            await self._prune()

    async def _start_checkpoint(self) -> None:
        """Copy the state to the host, and write it while training continues."""
        kill_point("before_checkpoint_copy")
        saves, host = self._parts.saves, self._host_state(self._at)
        await saves.begin(host, self._parts.trainer.begin_save, self._parts.worker)
        kill_point("checkpoint_copied")
        kept = self._parts.publications.kept()

        async def may_save() -> bool:
            # A checkpoint promises that every version up to its step is on this disk, and is the one that the run has.
            await kept()
            return not self._parts.publisher.diverged

        saves.start(may_save)
        self._saved_step, self._unsaved_s = self.step, 0.0
        await self._prune()

    async def _prune(self) -> None:
        await asyncio.to_thread(self._remove_old_versions)

    def _remove_old_versions(self) -> None:
        checkpoints = self._parts.saves.steps()
        gone = no_longer_needed(
            self._parts.retained.versions(),
            step=self.step,
            newest=self._settings.keep_versions,
            staleness_limit=self._settings.rules.staleness_limit,
            checkpoints=checkpoints,
            measured=self._parts.evaluations.measured_versions,
        )
        self._parts.retained.remove(gone, oldest_replayed=min(checkpoints, default=0))

    # ---------------------------------------------------------------- waiting

    async def _next_batch(self) -> Batch | NoFurtherBatch | None:
        """Return the batch of the current step, or None if asked to stop meanwhile.

        Raises:
            WaitTimedOut: no batch came within batch_timeout_s; the time of a pause does not count.
        """
        rules = self._settings.rules
        waiting_for = "an unnamed cause"
        ends_s = time.monotonic() + self._settings.batch_timeout_s
        while (left_s := ends_s - time.monotonic()) > 0.0:
            answer = await self._unless_stopped(
                self._parts.coordinator.next_batch(
                    self.step,
                    rollouts=rules.rollouts,
                    wait_s=min(LONG_POLL_S, left_s),
                    routes_bytes=rules.routes_bytes_max,
                )
            )
            match answer:
                case NotReady(reason, paused):
                    waiting_for = reason
                    if paused:
                        ends_s = time.monotonic() + self._settings.batch_timeout_s
                    self._parts.reporter.update("waiting", f"batch of step {self.step + 1}: {reason}")
                case _:
                    return answer
        raise WaitTimedOut(
            f"waited {self._settings.batch_timeout_s:g} s for the batch of step {self.step + 1}",
            cause=f"the coordinator waits for {waiting_for}",
            fix="check that peers have joined and generate rollouts, or raise batch_timeout_s",
        )

    async def _unless_stopped(self, call: Awaitable[ResultT]) -> ResultT | None:
        """Return the call's result, or None if asked to stop first.

        Raises:
            RollcastError: the call failed, or a publication or a checkpoint in flight did.
        """
        asked = asyncio.ensure_future(call)
        stopped = asyncio.ensure_future(self._parts.stop.wait())
        try:
            while True:
                background = (self._parts.publications, self._parts.saves)
                watched = {asked, stopped} | {one.under_way for one in background if one.under_way is not None}
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    return asked.result()
                if stopped.done():
                    return None
                for one in background:
                    if one.under_way is not None and one.under_way.done():
                        await one.finish()  # raises the error of the task, if it failed
        finally:
            for task in (asked, stopped):
                task.cancel()
            await asyncio.gather(asked, stopped, return_exceptions=True)

    async def _on_worker(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._parts.worker, work)
