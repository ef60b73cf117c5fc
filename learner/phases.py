"""Run the supervised warm start that precedes RL, and report its progress.

The functions block, so the worker thread calls them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from learner.config import LearnerConfig, WarmStartConfig
from learner.coordinator.reporter import StatusReporter
from learner.evaluation.held_out import HeldOut, Stopped
from learner.kill_points import kill_point
from learner.supervised.warm_start import warm_start
from learner.training.packing import Example
from learner.training.trainer import Trainer
from rollcast.policy.params import Params
from rollcast.wire.proto import rollcast_pb2 as pb

FetchExamples = Callable[[int, bool, int], list[pb.Example]]  # (count, flawed, cursor)


def run_warm_start(
    trainer: Trainer,
    config: LearnerConfig,
    fetch: FetchExamples,
    held_out: HeldOut,
    reporter: StatusReporter,
    *,
    row_tokens: int,
    has_flawed_teacher: bool,
    stop: threading.Event,
    account: Callable[[], None] = lambda: None,
) -> None:
    """Warm start the trainer and report progress.

    Args:
        row_tokens: length of a padded row in tokens.
        has_flawed_teacher: whether the task has one; without it there is no stage 2.
        account: called before each report, to account for the wall time until then.

    Raises:
        Stopped: the process is to stop.
    """
    settings = config.warm_start
    if not has_flawed_teacher:
        settings = settings.model_copy(update={"flawed_steps": 0})
    progress = _WarmStartProgress(settings, fetch, held_out, reporter, stop, account)
    figures = warm_start(
        trainer,
        settings,
        progress.examples,
        progress.accuracy,
        time_tokens=row_tokens,
        seed=config.seed,
        on_step=progress.on_step,
    )
    reporter.update(
        "warm_start",
        f"done after {figures.correct_steps} steps on correct answers"
        + (f" and {figures.flawed_steps} on flawed ones" if figures.flawed_steps else ""),
        warm_start_s=figures.seconds,
        warm_start_accuracy=figures.correct_accuracy,
    )


class _WarmStartProgress:
    """Supply the warm start with examples and accuracies, and report its progress."""

    def __init__(
        self,
        config: WarmStartConfig,
        fetch: FetchExamples,
        held_out: HeldOut,
        reporter: StatusReporter,
        stop: threading.Event,
        account: Callable[[], None],
    ) -> None:
        self._config = config
        self._fetch = fetch
        self._held_out = held_out
        self._reporter = reporter
        self._stop = stop
        self._account = account
        self._stage = ""
        self._reached = ""

    def examples(self, count: int, flawed: bool) -> Sequence[Example]:
        """Begin a stage and fetch ``count`` examples for it, with flawed or correct answers."""
        steps = self._config.flawed_steps if flawed else self._config.steps_max
        kind = "answers with mistakes, which RL will repair" if flawed else "correct answers"
        self._stage, self._reached = f"of at most {steps}, supervised, on {kind}", ""
        fetched = self._fetch(count, flawed, 0)
        return [Example.of(example.prompt_token_ids, example.answer_token_ids) for example in fetched]

    def on_step(self, step: int) -> None:
        """Report that a step begins.

        Raises:
            Stopped: the process is to stop.
        """
        if self._stop.is_set():
            raise Stopped
        kill_point("warm_starting")
        self._account()
        self._reporter.update("warm_start", f"step {step + 1} {self._stage}{self._reached}")

    def accuracy(self, params: Params) -> float:
        """Measure the share of held-out problems that are answered exactly, and show it in the next reports."""
        reached = self._held_out.measure(params).exact
        self._reached = f"; held-out accuracy {reached:.2f}, to reach {self._config.accuracy_gate:.2f}"
        return reached
