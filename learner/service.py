"""Run the learner process: join the run, warm-start or resume, evaluate, publish, train, evaluate again, finish."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar

import jax
import structlog

from learner.audit.evidence import Evidence
from learner.checkpoints.arrays import SavedArrays
from learner.checkpoints.async_save import Saves
from learner.checkpoints.checkpoint import Checkpoints, HostState, configured_folder
from learner.config import LearnerConfig
from learner.coordinator.access import Access
from learner.coordinator.client import CoordinatorClient, check_key
from learner.coordinator.reporter import StatusReporter
from learner.distributed.processes import TrainerOf, run_processes
from learner.evaluation.by_peers import PeerEvaluator
from learner.evaluation.held_out import HeldOut, Stopped
from learner.evaluation.own_sampler import cache_bytes_left, own_sampler
from learner.evaluation.periodic import EvaluationPlan, Evaluations
from learner.kill_points import arm_from_environment, kill_point
from learner.loop import LoopParts, LoopSettings, Position, TrainingLoop
from learner.phases import run_warm_start
from learner.publishing.base_file import BaseFiles
from learner.publishing.epochs import EpochStart, Replay
from learner.publishing.publications import Publications
from learner.publishing.publisher import OriginPusher, Publisher
from learner.publishing.versions import BASE_VERSION, Begin, RetainedVersions
from learner.run_facts import RunFacts
from learner.step_profiler import StepProfiler
from learner.teacher.endpoint import TeacherEndpoint
from learner.training.skipped_updates import SkippedUpdates
from learner.training.starting_model import context_warnings, keep_small_files, rate_warnings
from learner.training.trained_ids import TrainedIds
from learner.training.trainer import Trainer
from learner.wall_time import Cause, WallTime
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.params import Params
from rollcast.policy.sizing.computation import training_computation
from rollcast.runtime.process import EXIT_INTERRUPTED
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.invite import read_invite
from rollcast.wire.proto import rollcast_pb2 as pb

EXAMPLES_PER_CALL = 2048  # the task's generator takes a few seconds for so many
RENEW_TIMEOUT_S = 10.0  # seconds for one attempt to renew the certificate; the caller that needs it retries
HELD_OUT = "held_out"  # the evaluation set that every task has
CANCEL_GRACE_S = 2.0  # seconds for a publication in flight to finish once the process is asked to stop

ResultT = TypeVar("ResultT")

_log = structlog.get_logger()


async def run(config: LearnerConfig, stop: asyncio.Event) -> int:
    """Run the learner until the run is finished, or until ``stop`` is set.

    Returns:
        The exit status: 0 when the run is finished, 130 when stopped before (after saving a checkpoint).

    Raises:
        RollcastError: something failed that a person can act on.
    """
    return await run_processes(config, stop, lambda make_trainer: _live(config, stop, make_trainer))


async def _live(config: LearnerConfig, stop: asyncio.Event, make_trainer: TrainerOf) -> int:
    wall_time = WallTime()
    arm_from_environment()
    use_compilation_cache(config.compilation_cache)
    folder = RunFolder(config.run_folder).prepare()
    identity = Identity.load(config.identity_file)
    access = await _unless_stopped(_join(config, folder, identity), stop)
    if access is None:
        return EXIT_INTERRUPTED
    async with AsyncExitStack() as stack:
        client = CoordinatorClient(
            access.fresh, identity.public_key, reconnect_timeout_s=config.reconnect_timeout_s, random=SystemRandom()
        )
        stack.push_async_callback(client.close)
        info = await _unless_stopped(client.open(), stop)
        if info is None:
            return EXIT_INTERRUPTED
        reporter = await stack.enter_async_context(StatusReporter(client.report_status))
        kill_point("session_open")
        # One thread does all jax work, so that the event loop stays responsive.
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jax")
        stack.callback(worker.shutdown, wait=True, cancel_futures=True)
        facts = RunFacts.of(info, config)
        for warning in rate_warnings(config, facts.model) + context_warnings(config, facts.model, facts.row_tokens):
            _log.warning(warning)
        await asyncio.to_thread(keep_small_files, config, folder.model)
        life = _Life(config, facts, folder, identity, access, client, reporter, worker, wall_time, make_trainer, stop)
        try:
            return 0 if await life.live() else EXIT_INTERRUPTED
        except Stopped:
            _log.info("stopped in a warm start or an evaluation")
            return EXIT_INTERRUPTED


class _Life:
    """One life of the learner process, from the open session to the end of the process."""

    def __init__(
        self,
        config: LearnerConfig,
        facts: RunFacts,
        folder: RunFolder,
        identity: Identity,
        access: Access,
        client: CoordinatorClient,
        reporter: StatusReporter,
        worker: ThreadPoolExecutor,
        wall_time: WallTime,
        make_trainer: TrainerOf,
        stop: asyncio.Event,
    ) -> None:
        self._config = config
        self._facts = facts
        self._folder = folder
        self._identity = identity
        self._access = access
        self._client = client
        self._reporter = reporter
        self._worker = worker
        self._wall_time = wall_time
        self._make_trainer = make_trainer
        self._stop = stop
        self._stop_worker = threading.Event()
        self._bases = BaseFiles(folder.base)
        self._base_hash = ""  # of the base that adapters are trained over; empty: all weights are trained
        self._loop = asyncio.get_running_loop()

    async def live(self) -> bool:
        """Do everything that follows the opening of the session. Return False if stopped before the run was finished.

        Raises:
            Stopped: the process was asked to stop during a warm start or an evaluation, with nothing new to save.
        """
        async with AsyncExitStack() as stack:
            watcher = asyncio.create_task(self._pass_on_stop(), name="forward the stop")
            stack.callback(watcher.cancel)
            self._reporter.update("starting", "building the model")
            writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
            stack.callback(writer.shutdown, wait=True, cancel_futures=True)
            checkpoints = await self._on_worker(
                lambda: Checkpoints(
                    configured_folder(self._folder, self._config.checkpoint.folder), keep=self._config.checkpoint.keep
                )
            )
            saves = Saves(checkpoints, writer, lambda oldest: self._reporter.note(oldest_checkpoint_step=oldest))
            stack.push_async_callback(saves.close)
            trainer = await self._on_worker(lambda: self._make_trainer(self._facts.model))
            await self._on_worker(self._log_computation)
            sets = await self._held_out()
            held_out = next(iter(sets.values()))
            host = await self._begin(trainer, checkpoints, held_out)
            self._reporter.note(oldest_checkpoint_step=min(await self._on_worker(checkpoints.steps)))
            retained = self._retained()
            retained.remove_unfinished()
            evaluations = self._evaluations(sets, trainer, retained)
            stack.push_async_callback(evaluations.cancel)
            steps = await self._train(trainer, retained, saves, host, evaluations, stack)
            self._spent("finishing")
            if steps is not None:
                kill_point("training_done")
                self._reporter.update("evaluating", "held-out problems after RL")
                measured = evaluations.measure_after(steps)
                if not await _unless_stopped(measured, self._stop):
                    return False
                self._spent("evaluating")
                self._reporter.update("finished", _end_words(steps, self._facts.info.steps))
                await self._reporter.flush()
            return steps is not None

    # ---------------------------------------------------------------- before training

    def _log_computation(self) -> None:
        """Log on which devices, by which kernels and in which precision the learner trains, and why not better."""
        config, packed_tokens = self._config, self._config.packed_row_tokens
        how = training_computation(
            self._facts.model,
            max(self._facts.row_tokens, packed_tokens),
            packed=packed_tokens > 0,
            matmul_precision=config.matmul_precision,
            mesh_sizes=(config.mesh.data, config.mesh.fsdp, config.mesh.tensor),
        )
        _log.info("the learner " + str(how), **dataclasses.asdict(how))

    async def _begin(self, trainer: Trainer, checkpoints: Checkpoints, held_out: HeldOut) -> HostState:
        """Resume from the newest checkpoint; without one, warm-start, evaluate and save the first checkpoint."""

        def load(host: HostState, saved: SavedArrays) -> None:
            self._facts.check_checkpoint(host)
            if host.base_hash:
                trainer.set_base(self._bases.views(host.base_hash, self._facts.model))
            trainer.load(saved)

        kill_point("before_restore")
        restored = await self._on_worker(lambda: checkpoints.restore(load))
        if restored is not None:
            host = restored.host
            self._base_hash = host.base_hash
            kill_point("restored")
            _log.info("resumed", step=host.step, epoch=host.epoch, version=host.newest_version)
            self._reporter.update("starting", f"resumed from the checkpoint of step {host.step}", **host.figures)
            self._spent("starting")
            return host
        self._spent("starting")
        if self._config.warm_start.steps_max:
            await self._on_worker(lambda: self._warm_start(trainer, held_out))
            self._spent("warm_start")
        if self._facts.model.lora is not None:
            self._base_hash = await self._on_worker(lambda: self._bases.keep(trainer.write_base))
        host = self._host_state(Position(0, 0, Version(0), TrainedIds()))
        await self._on_worker(lambda: checkpoints.begin(host, trainer.begin_save).commit())
        self._spent("publishing")
        return host

    def _warm_start(self, trainer: Trainer, held_out: HeldOut) -> None:
        run_warm_start(
            trainer,
            self._config,
            self._fetch_examples,
            held_out,
            self._reporter,
            row_tokens=self._facts.row_tokens,
            has_flawed_teacher=self._facts.info.has_flawed_teacher,
            stop=self._stop_worker,
            account=lambda: self._spent("warm_start"),
        )

    async def _held_out(self) -> dict[str, HeldOut]:
        """Fetch the evaluation sets; problems held out of the training task come first."""
        config, facts = self._config, self._facts
        names = list(facts.info.evaluation_sets) or [HELD_OUT]
        if not config.evaluation.every_steps:
            names = names[:1]
        problems = {
            name: await self._client.held_out(config.evaluation_problems, name if number else "")
            for number, name in enumerate(names)
        }
        completions_most = max(map(len, problems.values()))

        def build() -> dict[str, HeldOut]:
            left, prompt_tokens_max = cache_bytes_left(), facts.info.prompt_tokens_max
            sampler = own_sampler(facts.model, prompt_tokens_max, facts.sampling.max_new_tokens, completions_most, left)
            _log.info("the learner can sample evaluations", at_once=sampler.batch_size, cache_bytes_max=left)
            return {
                name: HeldOut(
                    found, sampler, facts.sampling, seed=config.seed, score=self._score, stop=self._stop_worker
                )
                for name, found in problems.items()
            }

        return await self._on_worker(build)

    def _retained(self) -> RetainedVersions:
        config = self._config
        return RetainedVersions(
            self._folder.versions,
            mapped=int(self._facts.info.staleness_limit) + 2,
            in_memory=config.publish.keeps_states_in_memory and not config.distributed.shared_run_folder,
            newest_only=config.publish.newest_in_memory_only,
        )

    def _evaluations(self, sets: Mapping[str, HeldOut], trainer: Trainer, retained: RetainedVersions) -> Evaluations:
        wanted = self._config.evaluation
        plan = EvaluationPlan(wanted.every_steps, self._facts.info.steps, wanted.samples, tuple(wanted.pass_at))
        by_peers = PeerEvaluator(self._client.evaluate, wanted.deadline_s)
        return Evaluations(
            plan, sets, by_peers, partial(self._params_of, retained), self._worker, self._client.score, self._reporter
        )

    def _params_of(self, retained: RetainedVersions, version: int) -> Params:
        """Return a version of this disk on the default device, where the learner's own sampler runs; without noise."""
        model = self._facts.model
        own = retained.host_params(Version(version), model)
        params: Params = jax.device_put(self._bases.beneath(self._base_hash, model, own) if self._base_hash else own)
        return params

    # ---------------------------------------------------------------- training

    async def _train(
        self,
        trainer: Trainer,
        retained: RetainedVersions,
        saves: Saves,
        host: HostState,
        evaluations: Evaluations,
        stack: AsyncExitStack,
    ) -> int | None:
        """Train until the run's last step; return its number, or None if asked to stop before."""
        info = self._facts.info
        publisher = self._publisher(retained, stack)
        starts = [EpochStart(start.epoch, start.step_from, start.step) for start in info.epochs]
        replay = Replay(host.epoch, starts, info.recorded_batches)
        position = _position(host)
        common = position.newest_version if position.newest_version < host.step else None
        publisher.enter_epoch(Epoch(host.epoch), Version(replay.epoch_starts_at), common=common)
        publications = Publications(publisher)
        stack.push_async_callback(publications.cancel)
        ready = await _unless_stopped(self._publish_first(trainer, retained, publisher, publications, host), self._stop)
        if ready is None:
            return None
        self._spent("publishing")
        if "exact_before" not in self._reporter.values:
            evaluations.start_before(Version(0))
        parts = LoopParts(
            trainer,
            self._worker,
            self._client,
            retained,
            publisher,
            publications,
            saves,
            self._reporter,
            self._wall_time,
            evaluations,
            SkippedUpdates(self._folder.skipped_updates, self._reporter.values),
            Evidence(self._folder.evidence),
            StepProfiler(trainer, self._worker, self._folder.profiles, self._reporter.profiles),
            self._teacher(stack),
            self._stop,
        )
        loop = TrainingLoop(parts, self._settings(), self._host_state, position, replay)
        done = await loop.run()
        if not done:
            _log.info("stopped", step=loop.step)
            await _finish_within(publications, CANCEL_GRACE_S)
        return loop.step if done else None

    def _publisher(self, retained: RetainedVersions, stack: AsyncExitStack) -> Publisher:
        config = self._config
        origin = OriginPusher(
            lambda: self._client.wait_for_origin(config.join_timeout_s),
            self._credentials,
            timeout_s=config.publish.timeout_s,
            random=SystemRandom(),
        )
        stack.push_async_callback(origin.close)
        return Publisher(
            identity=self._identity,
            run=self._facts.info,
            model_json=self._facts.model_json,
            config=config.publish,
            retained=retained,
            origin=origin,
            announce=self._client.announce,
            stop_on_mismatch=config.resume.on_mismatch == "stop",
            adapters=self._facts.model.lora is not None,
        )

    def _teacher(self, stack: AsyncExitStack) -> TeacherEndpoint | None:
        teacher = self._config.teacher
        if teacher is None or not teacher.endpoint:
            return None
        endpoint = TeacherEndpoint(teacher)
        stack.push_async_callback(endpoint.close)
        return endpoint

    async def _credentials(self) -> TlsCredentials:
        return (await self._access.fresh()).credentials

    async def _publish_first(
        self,
        trainer: Trainer,
        retained: RetainedVersions,
        publisher: Publisher,
        publications: Publications,
        host: HostState,
    ) -> bool:
        """Publish every version up to the checkpoint's step, including the checkpoint's own."""
        self._reporter.update("publishing", "version of the checkpoint, through the origin")
        await publisher.publish_kept(until=host.step)
        if host.newest_version == host.step:
            version = Version(host.step)
            begin: Begin = trainer.begin_freeze
            is_base = bool(self._base_hash) and version == BASE_VERSION
            if is_base:
                begin = self._bases.first_version(self._base_hash, self._facts.model)
            snapshot = await self._on_worker(lambda: retained.freeze(version, begin, on_disk=is_base))
            await publications.start(version, snapshot)
            await publications.finish()
        return True

    def _settings(self) -> LoopSettings:
        info, config = self._facts.info, self._config
        return LoopSettings(
            steps=info.steps,
            publish_every_steps=info.publish_every_steps,
            checkpoint_every_steps=config.checkpoint.every_steps,
            checkpoint_every_s=config.checkpoint.every_s,
            keep_versions=config.publish.versions_kept(info.staleness_limit),
            batch_timeout_s=config.batch_timeout_s,
            objective=config.objective,
            completion_tokens_max=self._facts.sampling.max_new_tokens,
            stop_token_ids=self._facts.sampling.stop_token_ids,
            packed_row_tokens=config.packed_row_tokens,
            rules=self._facts.rules,
            behaviour=config.behaviour,
            audited_rollouts=config.audited_rollouts,
            caches_kept=self._facts.at_version_swap == "keep",
            mismatch=config.mismatch,
            sampling_check=config.sampling_check,
            audit=config.audit,
        )

    def _host_state(self, at: Position) -> HostState:
        return self._facts.host_state(
            self._config.seed, at.step, at.epoch, at.newest_version, at.trained, self._reporter.values, self._base_hash
        )

    def _spent(self, cause: Cause) -> None:
        self._wall_time.spent(cause)
        self._reporter.note(**self._wall_time.figures())

    # ---------------------------------------------------------------- between the two threads

    def _fetch_examples(self, count: int, flawed: bool, cursor: int) -> list[pb.Example]:
        examples: list[pb.Example] = []
        while len(examples) < count:
            if self._stop_worker.is_set():
                raise Stopped
            part = min(EXAMPLES_PER_CALL, count - len(examples))
            examples += self._from_worker(self._client.examples(part, flawed=flawed, cursor=cursor))
            cursor = examples[-1].example_id + 1  # ids have gaps where problems are held out or skipped
        return examples

    def _score(self, completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return self._from_worker(self._client.score(completions))

    def _from_worker(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        # Without a timeout of its own: the client bounds every call in time.
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _on_worker(self, work: Callable[[], ResultT]) -> ResultT:
        return await self._loop.run_in_executor(self._worker, work)

    async def _pass_on_stop(self) -> None:
        await self._stop.wait()
        self._stop_worker.set()


def _end_words(done: int, planned: int) -> str:
    return f"all {planned} steps are done" if done >= planned else f"{done} of {planned} steps are done, as was ordered"


def _position(host: HostState) -> Position:
    trained = TrainedIds((start, end) for start, end in host.trained_ranges)
    return Position(host.step, host.epoch, Version(host.newest_version), trained)


async def _join(config: LearnerConfig, folder: RunFolder, identity: Identity) -> Access:
    invite = await read_invite(config.invite.get_secret_value(), config.invite_file, config.join_timeout_s)
    check_key(bytes.fromhex(invite.learner_public_key), identity.public_key)

    def join(timeout_s: float) -> Coroutine[Any, Any, Enrolment]:
        return enrol(invite, identity, folder.secrets / "learner", timeout_s)

    return Access(await join(config.join_timeout_s), lambda: join(RENEW_TIMEOUT_S))


async def _unless_stopped(call: Awaitable[ResultT], stop: asyncio.Event) -> ResultT | None:
    """Return the call's result, or None if ``stop`` is set first; the call is then cancelled."""
    asked, stopped = asyncio.ensure_future(call), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({asked, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() else None
    finally:
        asked.cancel()
        stopped.cancel()
        await asyncio.gather(asked, stopped, return_exceptions=True)


async def _finish_within(publications: Publications, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await publications.finish()
    except TimeoutError:
        _log.info("publication postponed to the next start")
