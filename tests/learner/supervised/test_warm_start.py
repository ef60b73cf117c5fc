"""Test the warm start: the skill first, the flaw second."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from learner.config import WarmStartConfig
from learner.supervised.warm_start import warm_start
from learner.training.packing import Example
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.wire.rollouts import Sampling
from tests.learner.tiny import MODEL, TIME, tiny_trainer

CONFIG = WarmStartConfig(
    learning_rate=1e-2,
    batch_size=8,
    examples=16,
    accuracy_gate=0.9,
    steps_max=60,
    check_every_steps=20,
    flawed_steps=40,
)

PROMPTS = [(2, 3), (2, 4)]

RIGHT, FLAWED = 5, 6


def examples(count: int, flawed: bool) -> Sequence[Example]:
    return [Example.of(PROMPTS[index % 2], (FLAWED if flawed else RIGHT, 1)) for index in range(count)]


def share_answering(params: Params, token: int) -> float:
    sampler = Sampler(MODEL, prompt_tokens_max=2, new_tokens_max=2, batch_size=2)
    sampling = Sampling(temperature=1.0, max_new_tokens=2, stop_token_ids=(1,))
    sampled = sampler.generate(params, [SampleRequest(prompt, 0) for prompt in PROMPTS], sampling, greedy=True)
    return sum(completion.token_ids == (token, 1) for completion in sampled) / len(sampled)


def test_the_skill_is_learned_first_and_the_flaw_second() -> None:
    trainer = tiny_trainer()
    found = warm_start(
        trainer, CONFIG, examples, lambda params: share_answering(params, RIGHT), time_tokens=TIME, seed=0
    )
    assert found.correct_accuracy == 1.0
    assert found.correct_steps in (20, 40, 60)
    assert found.flawed_steps == 40
    assert found.seconds > 0.0
    assert share_answering(trainer.params(), FLAWED) == 1.0


@pytest.mark.parametrize(("accuracies", "steps"), [([0.0, 0.5, 0.95], 60), ([0.92], 20), ([0.0] * 3, 60)])
def test_stage_one_ends_at_the_gate_or_at_its_last_step(accuracies: list[float], steps: int) -> None:
    config = CONFIG.model_copy(update={"flawed_steps": 0})
    answers = iter(accuracies)
    found = warm_start(tiny_trainer(), config, examples, lambda _: next(answers), time_tokens=TIME, seed=0)
    assert (found.correct_steps, found.correct_accuracy) == (steps, accuracies[-1])
    assert next(answers, None) is None


def test_without_steps_the_trainer_keeps_its_parameters() -> None:
    config = CONFIG.model_copy(update={"steps_max": 0, "flawed_steps": 0})
    trainer = tiny_trainer()
    calls = itertools.count()
    found = warm_start(trainer, config, examples, lambda _: float(next(calls)), time_tokens=TIME, seed=0)
    assert found.correct_steps == 0
    assert next(calls) == 0
    expected = initial_params(MODEL, 1)
    assert all(np.array_equal(value, expected[name]) for name, value in trainer.params().items())
