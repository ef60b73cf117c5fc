"""Evaluate at intervals while training continues.

A measurement is sampled in parts of one batch of the sampler. Parts take turns with training on the one thread of all
jax work: part after part while the learner waits for a batch, at most one between two steps otherwise. The measured
policy is a published version from the learner's own disk, so training may change the parameters meanwhile; the
coordinator scores the completions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from learner.coordinator.reporter import StatusReporter
from learner.evaluation.evaluate import estimate_pass_at_k
from learner.evaluation.held_out import HeldOut, exact_counts
from rollcast.policy.params import Params
from rollcast.runtime.errors import RollcastError
from rollcast.wire.proto import rollcast_pb2 as pb

Kept = Callable[[], Awaitable[None]]
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
    """Evaluate versions in the background of training, one at a time.

    Args:
        sets: evaluation sets by name.
        worker: the thread of all jax work.
        score: sends completions to the coordinator and returns their scores.
        reporter: receives the metrics ``eval_SET_pass_at_K`` and their version as ``eval_SET_version``.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        sets: Mapping[str, HeldOut],
        worker: Executor,
        score: Score,
        reporter: StatusReporter,
    ) -> None:
        self._plan = plan
        self._sets = sets
        self._worker = worker
        self._score = score
        self._reporter = reporter
        self._turn = asyncio.Event()
        self._idle = False
        self._task: asyncio.Task[None] | None = None
        self._fresh: dict[str, float] = {}
        self.passed_over = 0
        """Number of evaluations that were skipped because the previous one was still running."""

    def step_done(self, step: int, version: int, params_of: Callable[[int], Params], kept: Kept) -> None:
        """Start a measurement of this version if one is due after this step, and give the one in flight a turn.

        Args:
            params_of: returns the parameters of a version; called on the worker thread.
            kept: waits until ``params_of`` can return this version's.
        """
        self._turn.set()
        if not self._plan.due(step):
            return
        if self._task is not None and not self._task.done():
            self.passed_over += 1
            self._reporter.note(evaluations_passed_over=float(self.passed_over))
            _log.warning("evaluation skipped", step=step, because="the previous one is still in progress")
            return
        self._task = asyncio.create_task(self._measure(version, params_of, kept), name="evaluation")

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
        """Wait for the measurement in flight, which now runs without turns."""
        if self._task is not None:
            with self.idle():
                await asyncio.gather(self._task)

    async def cancel(self) -> None:
        """Cancel the measurement in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self, version: int, params_of: Callable[[int], Params], kept: Kept) -> None:
        """Measure every set in turn. A failure costs this measurement, never the training."""
        began_s = time.monotonic()
        try:
            await kept()
            for name, held_out in self._sets.items():
                await self._measure_set(name, held_out, version, params_of)
        except RollcastError as error:
            _log.warning("evaluation failed", version=version, error=str(error))
            return
        _log.info("evaluated", version=version, seconds=round(time.monotonic() - began_s, 3), **self._fresh)

    async def _measure_set(
        self, name: str, held_out: HeldOut, version: int, params_of: Callable[[int], Params]
    ) -> None:
        samples = self._plan.samples
        correct: list[int] = []
        for start in held_out.parts(samples):
            await self._wait_for_turn()
            draw = partial(_draw, held_out, params_of, version, start, samples)
            completions = await asyncio.get_running_loop().run_in_executor(self._worker, draw)
            correct += exact_counts(await self._score(completions), samples)
        figures = {f"eval_{name}_version": float(version), f"eval_{name}_problems": float(len(held_out))}
        for k in self._plan.pass_at:
            estimate = estimate_pass_at_k(samples, correct, k)
            figures[f"eval_{name}_pass_at_{k}"] = estimate.mean
            figures[f"eval_{name}_pass_at_{k}_low"] = estimate.low
            figures[f"eval_{name}_pass_at_{k}_high"] = estimate.high
        self._fresh |= figures
        self._reporter.note(**figures)

    async def _wait_for_turn(self) -> None:
        """Wait for a turn: one per step, and any number while the learner waits for a batch."""
        if not self._idle:
            await self._turn.wait()
            self._turn.clear()


def _draw(
    held_out: HeldOut, params_of: Callable[[int], Params], version: int, start: int, samples: int
) -> list[pb.Completion]:
    return held_out.complete(params_of(version), start, samples, version=version)
