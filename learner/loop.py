"""The RL loop: batch in, checked and trained on; version, checkpoint and report out.

Publishing a version overlaps with waiting for the next batch and with training on it; two versions are never in flight
at once. All jax work runs on one worker thread, so that the event loop always answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from learner.batch_check import BatchRules, check_batch
from learner.checkpoint import Checkpoints, HostState
from learner.client import LONG_POLL_S, Batch, NotReady
from learner.packing import TrainingRow, pack
from learner.publications import Publications
from learner.reporter import StatusReporter
from learner.trained import TrainedIds
from learner.trainer import Trainer, behaviour_by_version
from learner.versions import RetainedVersions, no_longer_needed
from rollcast.policy.params import Params
from rollcast.policy.snapshot import thaw
from rollcast.runtime.errors import WaitTimedOut
from rollcast.wire.ids import Version

ResultT = TypeVar("ResultT")

_log = structlog.get_logger()


class Coordinator(Protocol):
    """What the loop asks of the coordinator's client."""

    async def next_batch(self, step: int, *, rollouts: int, wait_s: float = LONG_POLL_S) -> Batch | NotReady: ...

    async def report_step(self, step: int, values: dict[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Numbers that the loop follows."""

    steps: int  # train until this step
    publish_every_steps: int  # kappa
    checkpoint_every_steps: int
    keep_versions: int  # newest versions kept for behaviour log-probabilities
    batch_timeout_s: float
    advantage_epsilon: float
    rules: BatchRules

    def publishes(self, step: int) -> bool:
        """Whether the policy after ``step`` steps becomes a version; the last one always does."""
        return step % self.publish_every_steps == 0 or step == self.steps

    def checkpoints(self, step: int) -> bool:
        """Whether the state after ``step`` steps is saved."""
        return step % self.checkpoint_every_steps == 0 or step == self.steps


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop works with."""

    trainer: Trainer
    worker: Executor  # one thread: all jax work
    coordinator: Coordinator
    retained: RetainedVersions
    publications: Publications
    checkpoints: Checkpoints
    reporter: StatusReporter
    stop: asyncio.Event


class TrainingLoop:
    """Steps from ``step`` on.

    Args:
        host_state: the host part of a checkpoint for (step, newest version, trained ids).
    """

    def __init__(
        self,
        parts: LoopParts,
        settings: LoopSettings,
        host_state: Callable[[int, Version, TrainedIds], HostState],
        *,
        step: int,
        newest_version: Version,
        trained: TrainedIds,
    ) -> None:
        self.step = step
        self._parts = parts
        self._settings = settings
        self._host_state = host_state
        self._newest_version = newest_version
        self._trained = trained
        self._saved_step: int | None = None
        self._step_ended_s = time.monotonic()

    async def run(self) -> bool:
        """Train until the last step (True) or until told to stop (False); either way the state is saved.

        Raises:
            WaitTimedOut: no batch in time.
            RollcastError: a batch breaks the rules, or publishing or saving failed.
        """
        self._step_ended_s = time.monotonic()
        while self.step < self._settings.steps and not self._parts.stop.is_set():
            started_s = time.monotonic()
            batch = await self._next_batch()
            if batch is None:
                break
            await self._do_step(batch, wait_s=time.monotonic() - started_s)
        done = self.step >= self._settings.steps
        if done:
            await self._parts.publications.finish()
        await self.save()
        return done

    async def save(self) -> None:
        """Save the current state if it is not saved yet, and wait until it is durable."""
        if self._saved_step != self.step:
            await self._start_checkpoint()
        await self._on_worker(self._parts.checkpoints.wait)

    # ---------------------------------------------------------------- one step

    async def _do_step(self, batch: Batch, *, wait_s: float) -> None:
        self._parts.reporter.say("training", f"step {self.step + 1} of {self._settings.steps}")
        rows = check_batch(batch.rollouts, self.step, self._settings.rules, self._trained)
        values = await self._on_worker(lambda: self._train(rows))
        for row in rows:
            self._trained.add(row.rollout_id)
        self.step += 1
        publish_s = await self._timed(self._publish)
        checkpoint_s = await self._timed(self._checkpoint)
        ended_s = time.monotonic()
        values |= {
            "reward_mean": sum(row.reward for row in rows) / len(rows),
            "wait_s": wait_s,
            "publish_s": publish_s,
            "published_in_s": self._parts.publications.last_s,
            "checkpoint_s": checkpoint_s,
            "step_s": ended_s - self._step_ended_s,
            "version": float(self._newest_version),
            "replayed": float(batch.replayed),
        }
        self._step_ended_s = ended_s
        await self._parts.coordinator.report_step(self.step, values)

    def _train(self, rows: list[TrainingRow]) -> dict[str, float]:
        rules = self._settings.rules
        packed = pack(rows, time=rules.row_tokens, advantage_epsilon=self._settings.advantage_epsilon)
        started_s = time.monotonic()
        behaviour = behaviour_by_version(self._parts.trainer, packed, self._params_of)
        behaviour_s = time.monotonic() - started_s
        started_s = time.monotonic()
        values = self._parts.trainer.train_step(packed, behaviour)
        return values | {
            "behaviour_s": behaviour_s,
            "train_s": time.monotonic() - started_s,
            "tokens": float(packed.loss_mask.sum()),
        }

    def _params_of(self, version: int) -> Params:
        record, state = self._parts.retained.state(Version(version))
        return thaw(self._parts.trainer.model_config, record.tensors, state)

    async def _publish(self) -> None:
        if not self._settings.publishes(self.step):
            return
        snapshot = await self._on_worker(self._parts.trainer.snapshot)
        await self._parts.publications.start(Version(self.step), snapshot)
        self._newest_version = Version(self.step)

    async def _checkpoint(self) -> None:
        if self._settings.checkpoints(self.step):
            await self._start_checkpoint()
        elif self._settings.publishes(self.step):
            await self._prune()

    async def _start_checkpoint(self) -> None:
        # A checkpoint promises that every version up to its step is on our disk.
        await self._parts.publications.until_kept()
        host = self._host_state(self.step, self._newest_version, self._trained)

        def save() -> None:
            self._parts.checkpoints.save(self._parts.trainer.state(), host)

        await self._on_worker(save)
        self._saved_step = self.step
        await self._prune()

    async def _prune(self) -> None:
        gone = no_longer_needed(
            self._parts.retained.versions(),
            newest=self._settings.keep_versions,
            staleness_limit=self._settings.rules.staleness_limit,
            checkpoints=self._parts.checkpoints.steps(),
        )
        await asyncio.to_thread(self._parts.retained.remove, gone)

    # ---------------------------------------------------------------- waiting

    async def _next_batch(self) -> Batch | None:
        """The batch of the current step, or None when told to stop meanwhile."""
        rules = self._settings.rules
        rollouts = rules.groups_per_step * rules.samples_per_group
        waiting_for = "nothing that it names"
        ends_s = time.monotonic() + self._settings.batch_timeout_s
        while (left_s := ends_s - time.monotonic()) > 0.0:
            answer = await self._unless_stopped(
                self._parts.coordinator.next_batch(self.step, rollouts=rollouts, wait_s=min(LONG_POLL_S, left_s))
            )
            match answer:
                case NotReady(reason):
                    waiting_for = reason
                    self._parts.reporter.say("waiting", f"batch of step {self.step}: {reason}")
                case _:
                    return answer
        raise WaitTimedOut(
            f"waited {self._settings.batch_timeout_s:g} s for the batch of step {self.step}",
            cause=f"the coordinator waits for {waiting_for}",
            fix="see that peers have joined and make rollouts, or raise batch_timeout_s",
        )

    async def _unless_stopped(self, call: Awaitable[ResultT]) -> ResultT | None:
        """The call's result; None when told to stop first. A publication that fails meanwhile fails here."""
        asked = asyncio.ensure_future(call)
        stopped = asyncio.ensure_future(self._parts.stop.wait())
        try:
            while True:
                publication = self._parts.publications.under_way
                watched = {asked, stopped} | ({publication} if publication else set())
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    return asked.result()
                if stopped.done():
                    return None
                await self._parts.publications.finish()  # raises what went wrong, if anything did
        finally:
            for task in (asked, stopped):
                task.cancel()
            await asyncio.gather(asked, stopped, return_exceptions=True)

    async def _timed(self, work: Callable[[], Awaitable[None]]) -> float:
        started_s = time.monotonic()
        await work()
        return time.monotonic() - started_s

    async def _on_worker(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._parts.worker, work)
