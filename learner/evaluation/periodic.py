"""Evaluate published versions before RL, at intervals while training continues, and after RL.

Peers generate and the coordinator scores (learner.evaluation.by_peers). Where they cannot, the learner samples itself,
in parts of one batch of its sampler. Parts take turns with training on the one thread of all jax work: part after part
while the learner waits for a batch, at most one between two steps otherwise. The measured policy is a published version
from the learner's own disk, so training may change the parameters meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import structlog

from learner.coordinator.reporter import StatusReporter
from learner.evaluation.by_peers import Announced, PeerEvaluator, SetScores
from learner.evaluation.held_out import HeldOut, Playing, exact_counts
from learner.evaluation.pass_at_k import estimate_pass_at_k
from learner.kill_points import kill_point
from rollcast.policy.params import Params
from rollcast.runtime.errors import RollcastError
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb

T = TypeVar("T")
Kept = Callable[[], Awaitable[None]]
ParamsOf = Callable[[int], Params]
When = Literal["before", "after"]
Score = Callable[[Sequence[pb.Completion]], Awaitable[list[pb.CompletionScore]]]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The schedule of evaluations and their number of samples; ``every_steps`` 0: none is made."""

    every_steps: int
    last_step: int
    samples: int
    pass_at: tuple[int, ...]

    def due(self, step: int) -> bool:
        """Return whether the policy after ``step`` steps is evaluated."""
        return bool(self.every_steps) and (step % self.every_steps == 0 or step == self.last_step)


class Evaluations:
    """Evaluate versions in the background of training, at intervals one at a time.

    Args:
        sets: evaluation sets by name; problems held out of the training task come first.
        by_peers: asks the peers, which come first.
        params_of: returns the parameters of a published version, for the learner's own sampler; called on the worker
            thread.
        worker: the thread of all jax work.
        score: sends the learner's own completions to the coordinator and returns their scores.
        reporter: receives the metrics ``eval_SET_pass_at_K`` and their version as ``eval_SET_version``, and those of
            the first set before and after RL.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        sets: Mapping[str, HeldOut],
        by_peers: PeerEvaluator,
        params_of: ParamsOf,
        worker: Executor,
        score: Score,
        reporter: StatusReporter,
    ) -> None:
        self._plan = plan
        self._sets = sets
        self._by_peers = by_peers
        self._params_of = params_of
        self._worker = worker
        self._score = score
        self._reporter = reporter
        self._turn = asyncio.Event()
        self._idle = False
        self._task: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None
        self._fresh: dict[str, float] = {}
        self._measured: list[int] = []
        self.passed_over = 0
        """Number of evaluations that were skipped because the previous one was still running."""

    @property
    def measured_versions(self) -> frozenset[Version]:
        """Return the versions that are being measured, whose copies the learner may still need for its own sampler."""
        return frozenset(map(Version, self._measured))

    def start_before(self, version: int) -> None:
        """Start to measure the published policy that RL begins with; training does not wait for it."""
        self._before = asyncio.create_task(self._measure_before(version), name="evaluation before RL")

    async def measure_after(self, version: int) -> bool:
        """Measure the policy that RL ends with, and return True.

        Raises:
            RollcastError: it cannot be measured.
        """
        with self.idle():
            await self._measure_around("after", version)
        return True

    def step_done(self, step: int, version: int, kept: Kept, announced: Announced) -> None:
        """Start a measurement of this version if one is due after this step, and give the one in flight a turn.

        Args:
            kept: waits until the version is on this disk.
            announced: waits until the version is announced.
        """
        self._turn.set()
        if not self._plan.due(step):
            return
        if self._task is not None and not self._task.done():
            self.passed_over += 1
            self._reporter.note(evaluations_passed_over=float(self.passed_over))
            _log.warning("evaluation skipped", step=step, because="the previous one is still in progress")
            return
        self._task = asyncio.create_task(self._measure(version, kept, announced), name="evaluation")

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Let measurements run without turns while the body runs, because the learner has nothing to train on."""
        self._idle = True
        self._turn.set()
        try:
            yield
        finally:
            self._idle = False

    def take_figures(self) -> dict[str, float]:
        """Return the metrics that were measured since the last call."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    async def finish(self) -> None:
        """Wait for the measurements in flight, which now run without turns."""
        with self.idle():
            await asyncio.gather(*self._in_flight())

    async def cancel(self) -> None:
        """Cancel the measurements in flight."""
        for task in self._in_flight():
            task.cancel()
        await asyncio.gather(*self._in_flight(), return_exceptions=True)

    @contextmanager
    def _measuring(self, version: int) -> Iterator[None]:
        self._measured.append(version)
        try:
            yield
        finally:
            self._measured.remove(version)

    def _in_flight(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._before, self._task) if task is not None]

    async def _measure_before(self, version: int) -> None:
        try:
            await self._measure_around("before", version)
        except RollcastError as error:
            _log.warning("evaluation failed", version=version, error=str(error))

    async def _measure_around(self, when: When, version: int) -> None:
        """Measure one completion of each problem of the first set, as ``reward_{when}`` and ``exact_{when}``."""
        began_s = time.monotonic()
        name, held_out = next(iter(self._sets.items()))
        with self._measuring(version):
            scores = await self._scores(name, held_out, version, 1, _already_announced)
        figures = {
            f"reward_{when}": sum(scores.rewards) / len(held_out),
            f"exact_{when}": sum(scores.exact) / len(held_out),
            "evaluation_s": time.monotonic() - began_s,
        }
        self._reporter.add(**figures)
        _log.info("evaluated", version=version, when=when, **figures)

    async def _measure(self, version: int, kept: Kept, announced: Announced) -> None:
        """Measure every set in turn. A failure costs this measurement, never the training."""
        began_s = time.monotonic()
        try:
            await kept()
            with self._measuring(version):
                for name, held_out in self._sets.items():
                    await self._measure_set(name, held_out, version, announced)
        except RollcastError as error:
            _log.warning("evaluation failed", version=version, error=str(error))
            return
        _log.info("evaluated", version=version, seconds=round(time.monotonic() - began_s, 3), **self._fresh)

    async def _measure_set(self, name: str, held_out: HeldOut, version: int, announced: Announced) -> None:
        samples = self._plan.samples
        correct = (await self._scores(name, held_out, version, samples, announced)).exact
        figures = {f"eval_{name}_version": float(version), f"eval_{name}_problems": float(len(held_out))}
        for k in self._plan.pass_at:
            estimate = estimate_pass_at_k(samples, correct, k)
            figures[f"eval_{name}_pass_at_{k}"] = estimate.mean
            figures[f"eval_{name}_pass_at_{k}_low"] = estimate.low
            figures[f"eval_{name}_pass_at_{k}_high"] = estimate.high
        self._fresh |= figures
        self._reporter.note(**figures)

    async def _scores(
        self, name: str, held_out: HeldOut, version: int, samples: int, announced: Announced
    ) -> SetScores:
        found = await self._by_peers.scores(
            name, version, announced, problems=len(held_out), samples=samples, seed=held_out.seed
        )
        kill_point("evaluating")
        return found or await self._own_scores(held_out, version, samples)

    async def _own_scores(self, held_out: HeldOut, version: int, samples: int) -> SetScores:
        scores: list[pb.CompletionScore] = []
        for start in held_out.parts(samples):
            playing = Playing(await self._on_worker(partial(self._draw, held_out, version, start, samples)))
            playing.scored(await self._score(playing.going_on))
            while playing.going_on:
                await self._on_worker(partial(self._go_on, held_out, version, playing.going_on))
                playing.scored(await self._score(playing.going_on))
            scores += playing.scores
        rewards = [score.reward for score in scores]
        means = [sum(rewards[start : start + samples]) / samples for start in range(0, len(rewards), samples)]
        return SetScores(exact_counts(scores, samples), means)

    async def _on_worker(self, work: Callable[[], T]) -> T:
        await self._wait_for_turn()
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def _wait_for_turn(self) -> None:
        """Wait for a turn: one per step, and any number while the learner waits for a batch."""
        if not self._idle:
            await self._turn.wait()
            self._turn.clear()

    def _draw(self, held_out: HeldOut, version: int, start: int, samples: int) -> list[pb.Completion]:
        return held_out.complete(self._params_of(version), start, samples, version=version)

    def _go_on(self, held_out: HeldOut, version: int, completions: Sequence[pb.Completion]) -> None:
        held_out.go_on(self._params_of(version), completions)


async def _already_announced() -> None:
    """Wait for nothing: before and after RL, the version's publication has ended."""
