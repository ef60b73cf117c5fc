"""Measure a policy on held-out problems: our own sampler completes them as peers would, the coordinator scores them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from learner.evaluation.evaluate import complete_prompts
from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Sampler
from rollcast.runtime.errors import TaskError
from rollcast.wire.evaluation import KEPT_PROBLEMS
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Sampling

ScoreCompletions = Callable[[Sequence[pb.Completion]], list[pb.CompletionScore]]


class Stopped(Exception):
    """The process is to stop; this is raised inside the worker thread to leave a long phase."""


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """The means of reward and exact match over the held-out problems, with one completion for each."""

    reward: float
    exact: float


class HeldOut:
    """One set of held-out problems. Its methods block, so the worker thread calls them.

    Args:
        problems: the problems with their prompts.
        sampler: the policy's sampler; several sets share one.
        sampling: the settings that leases carry.
        seed: the seed of the noise; every measurement uses the same.
        score: sends completions to the coordinator and returns their scores.
        stop: when set, a measurement raises Stopped.
        seeds: the seed of each problem's noise; None: the noise follows from the problem's index.

    Raises:
        TaskError: there is no held-out problem.
    """

    def __init__(
        self,
        problems: Sequence[pb.Example],
        sampler: Sampler,
        sampling: Sampling,
        *,
        seed: int,
        score: ScoreCompletions,
        stop: threading.Event,
        seeds: Sequence[int] | None = None,
    ) -> None:
        if not problems:
            raise TaskError(
                "the coordinator has no held-out problems", fix="raise held_out_problems or change the task"
            )
        self._problems = problems
        self._sampler = sampler
        self._sampling = sampling
        self._seed = seed
        self._score = score
        self._stop = stop
        self._seeds = seeds

    def __len__(self) -> int:
        return len(self._problems)

    @property
    def seed(self) -> int:
        """The seed of the noise."""
        return self._seed

    def measure(self, params: Params) -> HeldOutScore:
        """Sample one completion for each problem and return the mean scores.

        Raises:
            Stopped: the process is to stop.
        """
        scores = self._scores(params)
        return HeldOutScore(
            reward=sum(score.reward for score in scores) / len(scores),
            exact=sum(score.exact for score in scores) / len(scores),
        )

    def parts(self, samples: int) -> list[int]:
        """Return the index of the first problem of each part into which a measurement is divided; see ``complete``.

        A part has as many problems as keep its completions within one batch of the sampler, and at least one.
        """
        return list(range(0, len(self._problems), max(1, self._sampler.batch_size // samples)))

    def complete(self, params: Params, start: int, samples: int, *, version: int) -> list[pb.Completion]:
        """Sample completions of the part that begins at ``start``; those of the first KEPT_PROBLEMS have ``keep``."""
        size = max(1, self._sampler.batch_size // samples)
        return self._complete(params, start, size, samples, version)

    def _scores(self, params: Params) -> list[pb.CompletionScore]:
        completions: list[pb.Completion] = []
        size = self._sampler.batch_size
        for start in range(0, len(self._problems), size):  # in parts, so that ``stop`` is noticed soon
            if self._stop.is_set():
                raise Stopped
            completions += self._complete(params, start, size, 1, None)
        return self._score(completions)

    def _complete(
        self, params: Params, start: int, size: int, samples: int, version: int | None
    ) -> list[pb.Completion]:
        part = self._problems[start : start + size]
        prompts = [tuple(problem.prompt_token_ids) for problem in part]
        sampled = complete_prompts(
            self._sampler,
            params,
            prompts,
            self._sampling,
            seed=self._seed,
            samples=samples,
            numbers=(range(len(self._problems)) if self._seeds is None else self._seeds)[start : start + size],
        )
        return [
            pb.Completion(
                example_id=problem.example_id,
                token_ids=completion.token_ids,
                sample_index=index,
                keep=version is not None and start + number < KEPT_PROBLEMS,
                version=version or 0,
            )
            for number, (problem, completed) in enumerate(zip(part, sampled, strict=True))
            for index, completion in enumerate(completed)
        ]


def exact_counts(scores: Sequence[pb.CompletionScore], samples: int) -> list[int]:
    """Return how many of each problem's ``samples`` scores are right."""
    return [sum(score.exact for score in scores[start : start + samples]) for start in range(0, len(scores), samples)]
