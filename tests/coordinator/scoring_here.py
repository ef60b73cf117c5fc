"""Score in the coordinator's own process, which saves a test the verifier process that its run would start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from coordinator.config.checks import ExactCheck
from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import JsonlTask, TaskConfig, single_tasks
from coordinator.prompts import loading
from coordinator.tasks.build import build_task
from coordinator.tasks.checks.checker import outcome_of
from coordinator.tasks.checks.task import ScoringFailure
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.jobs import BATCH_ITEMS, QueueScorer
from coordinator.verifiers.scorer import Failed, Scored, Scorer


class ScorerHere(QueueScorer):
    """Scores in this process. It has no process that can hang or die, and it gets completions as text."""

    def __init__(self, task: TaskConfig, seed: int, queue_max: int) -> None:
        super().__init__(queue_max, BATCH_ITEMS)
        self._task = build_task(task, seed)

    def decode_by(self, tokenizer_json: str) -> None:
        """See Scorer."""

    async def start(self) -> None:
        self._serve_with([self._serve()])

    async def close(self) -> None:
        await self._end_lanes()

    async def _serve(self) -> None:
        while True:
            for job in await self._jobs.next_batch():
                item = job.item
                found = outcome_of(self._task.verify, item.problem, item.completion_text)
                if isinstance(found, ScoringFailure):
                    job.finish(Failed(item.key, found.reason, found.detail, found.retryable))
                else:
                    job.finish(Scored(item.key, found))


def scorer_of(task: TaskConfig, seed: int, config: VerifierConfig, *, tokenizer_folder: Path | None = None) -> Scorer:
    """Return a scorer of this process for answers that are compared; for all else that of a real run."""
    compared = all(isinstance(one, JsonlTask) and isinstance(one.check, ExactCheck) for one in single_tasks(task))
    if compared and tokenizer_folder is None and config.pool == "local":
        return ScorerHere(task, seed, config.queue_max)
    return build_scorer(task, seed, config, tokenizer_folder=tokenizer_folder)


@contextmanager
def scoring_here() -> Iterator[None]:
    """Give runs that start meanwhile the scorers of `scorer_of`."""
    with patch.object(loading, "build_scorer", scorer_of):
        yield
