"""Measure a policy on held-out problems: our own sampler completes them as peers would, the coordinator scores them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from learner.evaluation.evaluate import complete_prompts
from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.runtime.errors import TaskError
from rollcast.wire.evaluation import KEPT_PROBLEMS, evaluation_seed
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
        numbers = range(len(problems)) if seeds is None else seeds
        self._by_id = {one.example_id: (number, one) for number, one in zip(numbers, problems, strict=True)}
        self._seed = seed
        self._score = score
        self._stop = stop

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

    def play(self, params: Params, completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        """Return the scores of completions, after all turns of those that an environment answers.

        Raises:
            Stopped: the process is to stop.
        """
        playing = Playing(completions)
        playing.scored(self._score(playing.going_on))
        while playing.going_on:
            if self._stop.is_set():
                raise Stopped
            self.go_on(params, playing.going_on)
            playing.scored(self._score(playing.going_on))
        return playing.scores

    def go_on(self, params: Params, completions: Sequence[pb.Completion]) -> None:
        """Append the policy's next turn to each of these completions, which an environment has answered."""
        requests = []
        for one in completions:
            number, problem = self._by_id[one.example_id]
            seed = evaluation_seed(self._seed, number, one.sample_index)
            said = tuple(one.token_ids)
            requests.append(SampleRequest(tuple(problem.prompt_token_ids), seed, said, earlier_turns=len(said)))
        for one, turn in zip(completions, self._sampler.generate(params, requests, self._sampling), strict=True):
            one.token_ids.extend(turn.token_ids)
            one.turn_lengths.append(len(turn.token_ids))

    def _scores(self, params: Params) -> list[pb.CompletionScore]:
        completions: list[pb.Completion] = []
        size = self._sampler.batch_size
        for start in range(0, len(self._problems), size):  # in parts, so that ``stop`` is noticed soon
            if self._stop.is_set():
                raise Stopped
            completions += self._complete(params, start, size, 1, None)
        return self.play(params, completions)

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
            numbers=[self._by_id[problem.example_id][0] for problem in part],
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


class Playing:
    """Keeps completions until each has a score: those that an environment answers go on with another turn.

    Attributes:
        scores: of all completions in their order; valid once none goes on.
        going_on: completions without a score, all of them at first; each has to be continued before it is scored again.
    """

    def __init__(self, completions: Sequence[pb.Completion]) -> None:
        self.scores = [pb.CompletionScore() for _ in completions]
        self.going_on = list(completions)
        self._indexes = list(range(len(completions)))

    def scored(self, scores: Sequence[pb.CompletionScore]) -> None:
        """Take the scores of ``going_on``, and append the answers to the completions that go on."""
        indexes, going_on = list[int](), list[pb.Completion]()
        for index, completion, score in zip(self._indexes, self.going_on, scores, strict=True):
            self.scores[index] = score
            if score.goes_on:
                indexes.append(index)
                going_on.append(_with_answer(completion, score))
        self._indexes, self.going_on = indexes, going_on


def _with_answer(completion: pb.Completion, score: pb.CompletionScore) -> pb.Completion:
    """Return the completion up to where its turn ends, and the environment's answer."""
    lengths = list(completion.turn_lengths) or [len(completion.token_ids)]
    lengths[-1] -= len(completion.token_ids) - score.token_count
    return pb.Completion(
        example_id=completion.example_id,
        token_ids=[*completion.token_ids[: score.token_count], *score.answer_token_ids],
        sample_index=completion.sample_index,
        keep=completion.keep,
        version=completion.version,
        turn_lengths=[*lengths, len(score.answer_token_ids)],
    )


def exact_counts(scores: Sequence[pb.CompletionScore], samples: int) -> list[int]:
    """Return how many of each problem's ``samples`` scores are right."""
    return [sum(score.exact for score in scores[start : start + samples]) for start in range(0, len(scores), samples)]
