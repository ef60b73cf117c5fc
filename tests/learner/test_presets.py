from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.objective_config import ALGORITHMS, ObjectiveConfig
from learner.presets import objective
from tests.learner.packed_example import completions, picked, terms_of
from tests.learner.reference_objective import OBJECTIVES, Sequence, gradients, grpo

# GSPO clips at a few parts in ten thousand: with this spread both sides of its clips occur, as those of the others do.
SPREADS = dict.fromkeys(ALGORITHMS, 0.3) | {"gspo": 1e-3}


def value_and_gradient(config: ObjectiveConfig, sequences: list[Sequence]) -> tuple[float, list[Any]]:
    terms = terms_of(config, sequences)
    with jax.numpy_dtype_promotion("strict"):
        value, gradient = jax.value_and_grad(
            lambda logprobs: objective(config).value(terms._replace(logprobs=logprobs))
        )(terms.logprobs)
    assert np.all(np.asarray(gradient)[np.asarray(terms.loss_mask) == 0.0] == 0.0)
    return float(value), picked(np.asarray(gradient))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_agrees_with_its_paper(algorithm: str) -> None:
    config = ObjectiveConfig.model_validate({"algorithm": algorithm})
    sequences = completions(3, SPREADS[algorithm])
    value, gradient = value_and_gradient(config, sequences)
    assert value == pytest.approx(OBJECTIVES[algorithm](sequences), abs=2e-6)
    for found, expected in zip(gradient, gradients(OBJECTIVES[algorithm], sequences), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "decoupled-ppo", "ppo"])
def test_the_example_has_clipped_and_unclipped_tokens(algorithm: str) -> None:
    gradient = np.concatenate(gradients(OBJECTIVES[algorithm], completions(3, SPREADS[algorithm])))
    assert 0 < (gradient == 0.0).sum() < gradient.size


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_a_penalty_and_entropy_come_on_top(kl: str) -> None:
    config = ObjectiveConfig.model_validate({"kl": kl, "kl_coefficient": 0.1, "entropy_coefficient": 0.01})
    sequences = completions(4, 0.3)

    def expected(sequences: list[Sequence]) -> float:
        parts = []
        for one in sequences:
            apart = one.logprobs - one.reference
            frozen = one.frozen - one.reference
            ratio = np.exp(-apart)
            parts.append(
                {"k1": frozen * (1 + one.logprobs - one.frozen), "k2": apart**2 / 2, "k3": ratio - 1 + apart}[kl]
            )
        return grpo(sequences) - 0.1 * float(np.concatenate(parts).mean()) + 0.01 * 0.25

    value, gradient = value_and_gradient(config, sequences)
    assert value == pytest.approx(expected(sequences), abs=2e-6)
    for found, right in zip(gradient, gradients(expected, sequences), strict=True):
        np.testing.assert_allclose(found, right, atol=3e-6)


def test_sequence_weights_can_correct_a_log_probability() -> None:
    given = {"surrogate": "log-probability", "importance": "sequence", "importance_high": 1.1}
    config = ObjectiveConfig.model_validate(given)
    sequences = completions(5, 0.3)
    value, _ = value_and_gradient(config, sequences)
    worth = {id(one): advantage for one, advantage in zip(sequences, _normalised(sequences), strict=True)}
    parts = [
        min(float(np.prod(one.ratio)) ** (1 / len(one.ratio)), 1.1) * worth[id(one)] * one.logprobs for one in sequences
    ]
    assert value == pytest.approx(float(np.concatenate(parts).mean()), abs=2e-6)


def _normalised(sequences: list[Sequence]) -> list[float]:
    from tests.learner.reference_objective import group_advantages

    return group_advantages(sequences, divide=True)


def test_without_a_proximal_policy_the_current_one_serves() -> None:
    config = ObjectiveConfig.model_validate({"algorithm": "decoupled-ppo"})
    sequences = [dataclasses.replace(one, proximal=one.logprobs) for one in completions(3, 0.3)]
    terms = terms_of(config, sequences)
    with_it, without = (
        jax.grad(lambda logprobs, one=one: objective(config).value(one._replace(logprobs=logprobs)))(terms.logprobs)
        for one in (terms, terms._replace(proximal_logprobs=None))
    )
    np.testing.assert_allclose(with_it, without, atol=1e-7)
    assert np.abs(np.asarray(without)).max() > 0.0


def test_gauges_are_means_over_trained_tokens() -> None:
    config = ObjectiveConfig.model_validate({"algorithm": "two-sided", "kl": "k3", "kl_coefficient": 0.1})
    sequences = completions(3, 0.6)
    terms = terms_of(config, sequences)
    shares = terms.loss_mask / jnp.sum(terms.loss_mask)
    found = {name: float(value) for name, value in objective(config).metrics(terms, shares).items()}

    def mean(values: list[Any]) -> float:
        return float(np.concatenate(values).mean())

    weights = [np.exp(one.proximal - one.behaviour) for one in sequences]
    steps = [np.exp(one.logprobs - one.proximal) for one in sequences]
    expected = {
        "ratio_mean": mean([one.ratio for one in sequences]),
        "clip_fraction": mean([(step < 0.8) | (step > 1.28) for step in steps]),
        "kl_k3": mean([one.ratio - 1.0 - np.log(one.ratio) for one in sequences]),
        "entropy": 0.25,
        "importance_mean": mean([np.where((w >= 0.5) & (w <= 5.0), w, 0.0) for w in weights]),
        "importance_bounded": mean([(w < 0.5) | (w > 5.0) for w in weights]),
        "reference_kl": mean([np.exp(o.reference - o.logprobs) - 1 - o.reference + o.logprobs for o in sequences]),
    }
    assert found == pytest.approx(expected, abs=2e-6)


def test_grpo_agrees_with_tunix() -> None:
    pytest.importorskip("tunix")
    from tunix.rl.grpo import grpo_learner  # the reference that the field uses

    assert grpo_learner is not None
