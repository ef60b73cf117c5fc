"""`rollcast curate --profile`: measure pass rates of rows with a run's newest checkpoint on this machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordinator.tasks.checks.task import Problem
from coordinator.tasks.curation.curate import CHUNK_ROWS, Profile
from coordinator.tasks.curation.pass_rates import PassRate, ProfileFile, key_of
from coordinator.tasks.fields import Row
from coordinator.tasks.rows import problem_of
from coordinator.tasks.sources import RowsTask
from coordinator.tasks.token_limits import TokenLimits
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.scorer import Failed, ScoreItem, Scorer, Verdict, score_again
from learner.evaluation.offline import CheckpointSampler, load_policy
from rollcast.cli.run.run_tools import SCORE_DEADLINE_S, run_config, run_tokenizer
from rollcast.runtime.errors import NotScored
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.stop_strings import StopStrings
from rollcast.wire.text.tokenizer import TextTokenizer

START_DEADLINE_S = 180.0

#: Runs a coroutine on the loop of the other thread; the number is its timeout in seconds.
RunOnLoop = Callable[[Coroutine[Any, Any, Any], float], Any]


@contextmanager
def profiling(run: Path, learner_folder: Path, task: RowsTask, samples: int, kept: Path) -> Iterator[Profile]:
    """Yield a function that measures pass rates with this run's policy and keeps them in a file for resuming.

    Raises:
        RollcastError: the run, its checkpoint or the task cannot be used, or ``kept`` was written with other settings.
    """
    config = run_config(run)
    tokenizer = run_tokenizer(config, RunFolder(run))
    host, params = load_policy(learner_folder)
    settings = {
        "run": host.run_id,
        "step": host.step,
        "samples": samples,
        "seed": config.run.seed,
        "check": task.check.model_dump(mode="json"),
    }
    file = ProfileFile(kept, settings)
    with _loop() as run_on_loop:
        scorer = build_scorer(task, config.run.seed, config.verifier)
        run_on_loop(scorer.start(), START_DEADLINE_S)
        try:
            scores = _Scores(scorer, tokenizer, config.sampling.stop_strings, run_on_loop)
            limits = TokenLimits(tokenizer, config.sampling.prompt_tokens_max, config.sampling.new_tokens_max)
            sampler = CheckpointSampler(host, params, CHUNK_ROWS * samples, scores.score, config.run.seed)
            yield _Profiler(file, limits, sampler, scores, samples).profile
        finally:
            run_on_loop(scorer.close(), START_DEADLINE_S)


class _Scores:
    """Verifies completions of one chunk of rows; a row's index in the chunk is its example_id."""

    def __init__(
        self, scorer: Scorer, tokenizer: TextTokenizer, stop_strings: Sequence[str], run_on_loop: RunOnLoop
    ) -> None:
        self._scorer = scorer
        self._ends = StopStrings(stop_strings, tokenizer.decode)
        self._tokenizer = tokenizer
        self._run_on_loop = run_on_loop
        self.problems: dict[int, Problem] = {}

    def score(self, completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        scores: list[pb.CompletionScore] = self._run_on_loop(self._score_all(completions), SCORE_DEADLINE_S)
        return scores

    async def _score_all(self, completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        items = [
            ScoreItem(
                str(number),
                self.problems[one.example_id],
                self._tokenizer.decode(self._ends.cut(tuple(one.token_ids))),
            )
            for number, one in enumerate(completions)
        ]
        verdicts = await score_again(self._scorer, items)
        return [_score_of(verdict) for verdict in verdicts]


def _score_of(verdict: Verdict) -> pb.CompletionScore:
    if isinstance(verdict, Failed):
        raise NotScored("a completion could not be scored", cause=verdict.words, fix="see the cause")
    return pb.CompletionScore(reward=verdict.score.reward, exact=verdict.score.exact)


class _Profiler:
    def __init__(
        self, file: ProfileFile, limits: TokenLimits, sampler: CheckpointSampler, scores: _Scores, samples: int
    ) -> None:
        self._file = file
        self._limits = limits
        self._sampler = sampler
        self._scores = scores
        self._samples = samples

    def profile(self, rows: Sequence[Row]) -> list[PassRate | None]:
        """Return the pass rate of each row. It depends on the row's prompt only, not on the other rows of the chunk."""
        problems = [problem_of(row, "curate:0") for row in rows]
        prompts = [self._limits.check(problem)[0] for problem in problems]
        keys = [key_of(row.prompt) for row in rows]
        wanted = [at for at, prompt in enumerate(prompts) if prompt is not None and self._file.get(keys[at]) is None]
        if wanted:
            self._scores.problems = dict(enumerate(problems))
            examples = [pb.Example(example_id=at, prompt_token_ids=prompts[at]) for at in wanted]
            correct = self._sampler.correct(examples, self._samples, seeds=[keys[at] for at in wanted])
            self._file.add(
                (keys[at], PassRate(self._samples, right)) for at, right in zip(wanted, correct, strict=True)
            )
        return [None if prompt is None else self._file.get(key) for key, prompt in zip(keys, prompts, strict=True)]


@contextmanager
def _loop() -> Iterator[RunOnLoop]:
    """Run an event loop on another thread, for the verifier processes while this thread samples."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="verifiers", daemon=True)
    thread.start()

    def run_on_loop(work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout_s)

    try:
        yield run_on_loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_DEADLINE_S)
        loop.close()
