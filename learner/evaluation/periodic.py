"""Evaluation at intervals while training goes on.

A measurement is drawn in parts of one batch of the sampler. Parts take turns with training on the one thread that all
jax work runs on: part after part while the learner waits for a batch, one at most between two steps where it does not.
What is measured is a published version from our own disk, so training may go on changing the parameters; the scores
come from the coordinator meanwhile.
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
    """When, and how much. ``every_steps`` 0: never."""

    every_steps: int
    last_step: int
    samples: int
    pass_at: tuple[int, ...]

    def due(self, step: int) -> bool:
        """Whether the policy after so many steps is measured."""
        return bool(self.every_steps) and (step % self.every_steps == 0 or step == self.last_step)


class Evaluations:
    """Measures versions beside training, one at a time.

    Args:
        sets: by name.
        worker: the thread of all jax work.
        score: has completions verified.
        reporter: is told the figures, named ``eval_SET_pass_at_K``, and their version as ``eval_SET_version``.
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
        """Steps at which the measurement before was still under way."""

    def step_done(self, step: int, version: int, params_of: Callable[[int], Params], kept: Kept) -> None:
        """A step is done: begin a measurement of this version if one is due, and give the one under way a turn.

        ``params_of``: the parameters of a version, on the worker thread; ``kept``: waits until it can give them.
        """
        self._turn.set()
        if not self._plan.due(step):
            return
        if self._task is not None and not self._task.done():
            self.passed_over += 1
            self._reporter.note(evaluations_passed_over=float(self.passed_over))
            _log.warning("evaluation passed over", step=step, because="the one before is still under way")
            return
        self._task = asyncio.create_task(self._measure(version, params_of, kept), name="evaluation")

    @contextmanager
    def idle(self) -> Iterator[None]:
        """The learner has nothing to train on meanwhile."""
        self._idle = True
        self._turn.set()
        try:
            yield
        finally:
            self._idle = False

    def take_figures(self) -> dict[str, float]:
        """What was measured since the last call."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    async def finish(self) -> None:
        """Wait for the measurement under way, which goes on without a pause."""
        if self._task is not None:
            with self.idle():
                await asyncio.gather(self._task)

    async def cancel(self) -> None:
        """Leave the measurement under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self, version: int, params_of: Callable[[int], Params], kept: Kept) -> None:
        """Every set in turn. A failure costs this measurement, never the training."""
        began_s = time.monotonic()
        try:
            await kept()
            for name, held_out in self._sets.items():
                await self._measure_set(name, held_out, version, params_of)
        except RollcastError as error:
            _log.warning("evaluation given up", version=version, error=str(error))
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
        """One turn a step, and any number while the learner waits. Its steps bound the wait, or ``cancel`` ends it."""
        if not self._idle:
            await self._turn.wait()
            self._turn.clear()


def _draw(
    held_out: HeldOut, params_of: Callable[[int], Params], version: int, start: int, samples: int
) -> list[pb.Completion]:
    return held_out.complete(params_of(version), start, samples, version=version)
