from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from learner.config import LearnerConfig
from learner.evaluation.held_out import HeldOut, HeldOutScore, exact_counts
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Sampler
from rollcast.wire.evaluation import KEPT_PROBLEMS
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Sampling

MODEL = ModelConfig(
    vocabulary_size=8, layers=1, width=16, query_heads=2, key_value_heads=1, head_size=8, feed_forward_width=16
)


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(MODEL, 4, 6, 6)


@pytest.fixture(scope="module")
def params() -> Params:
    return Trainer(MODEL, LearnerConfig()).params()


def held_out(sampler: Sampler, problems: int) -> HeldOut:
    def score(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        raise AssertionError("not requested here")

    examples = [pb.Example(example_id=100 + index, prompt_token_ids=[2, 3]) for index in range(problems)]
    return HeldOut(examples, sampler, Sampling(1.0, 2, (1,)), seed=0, score=score, stop=threading.Event())


def test_parts_fit_a_batch_of_the_sampler(sampler: Sampler, params: Params) -> None:
    found = held_out(sampler, 7)
    assert found.parts(2) == [0, 3, 6]
    assert found.parts(100) == list(range(7))
    sampled = [one for start in found.parts(2) for one in found.complete(params, start, 2, version=9)]
    assert [(one.example_id, one.sample_index) for one in sampled] == [(100 + n, i) for n in range(7) for i in range(2)]
    assert {one.version for one in sampled} == {9}
    assert found.complete(params, 3, 2, version=9) == sampled[6:12]  # the same noise again


def test_the_noise_of_a_problem_does_not_depend_on_the_size_of_the_batch(params: Params) -> None:
    sampled = []
    for rows in (3, 6):
        found = held_out(Sampler(MODEL, 4, 2, rows), 7)
        sampled.append([one for start in found.parts(2) for one in found.complete(params, start, 2, version=9)])
    assert sampled[0] == sampled[1]


def test_the_first_problems_are_kept_for_people(sampler: Sampler, params: Params) -> None:
    found = held_out(sampler, KEPT_PROBLEMS + 4)
    sampled = [one for start in found.parts(1) for one in found.complete(params, start, 1, version=9)]
    assert sum(one.keep for one in sampled) == KEPT_PROBLEMS


def test_counts() -> None:
    scores = [pb.CompletionScore(exact=exact) for exact in (True, False, True, True)]
    assert exact_counts(scores, 2) == [1, 2]


def test_a_completion_goes_on_until_its_environment_has_ended(sampler: Sampler, params: Params) -> None:
    asked: list[tuple[list[int], list[int]]] = []

    def score(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        """Answer the first completion once with two tokens, after one of its tokens, and score all others."""
        asked.extend((list(one.token_ids), list(one.turn_lengths)) for one in completions)
        return [
            pb.CompletionScore(goes_on=True, token_count=1, answer_token_ids=[5, 6])
            if one.example_id == 100 and not one.turn_lengths
            else pb.CompletionScore(reward=0.5, exact=True)
            for one in completions
        ]

    problems = [pb.Example(example_id=100 + index, prompt_token_ids=[2, 3]) for index in range(2)]
    found = HeldOut(problems, sampler, Sampling(1.0, 6, ()), seed=0, score=score, stop=threading.Event())
    assert found.measure(params) == HeldOutScore(0.5, 1.0)
    (first, _), (second, _), (more, lengths) = asked
    assert (len(first), len(second)) == (6, 6)
    assert more[:3] == [first[0], 5, 6]
    assert lengths == [1, 2, 3], "the longest completion counts answers too"
