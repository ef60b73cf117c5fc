from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.config import ObjectiveConfig
from learner.objective import Objective, Terms, group_normalised, grpo, metrics, token_mean, zeros

CONFIG = ObjectiveConfig(clip_low=0.2, clip_high=0.28, advantage_epsilon=1e-4)
ROWS, TIME = 6, 5

Array = np.ndarray[Any, Any]


@pytest.fixture
def batch() -> dict[str, Array]:
    """Random log-probabilities with ratios on both sides of both clips, in float64."""
    random = np.random.default_rng(3)
    behaviour = -random.uniform(0.1, 3.0, (ROWS, TIME))
    return {
        "logprobs": behaviour + random.normal(0.0, 0.3, (ROWS, TIME)),
        "behaviour_logprobs": behaviour,
        "advantages": random.normal(size=ROWS),
        "loss_mask": (random.random((ROWS, TIME)) < 0.7).astype(np.float64),
    }


def terms_of(batch: dict[str, Array], logprobs: jax.Array | None = None) -> Terms:
    arrays = {name: jnp.asarray(value, jnp.float32) for name, value in batch.items()}
    mask = arrays["loss_mask"]
    logprobs = arrays["logprobs"] if logprobs is None else logprobs
    return Terms(logprobs, arrays["behaviour_logprobs"], arrays["advantages"][:, None], mask, token_mean(mask))


def reference_value(batch: dict[str, Array], logprobs: Array) -> float:
    """PPO's clipped surrogate, token by token, in float64."""
    total, tokens = 0.0, 0
    for row in range(ROWS):
        for time in range(TIME):
            if batch["loss_mask"][row, time]:
                ratio = np.exp(logprobs[row, time] - batch["behaviour_logprobs"][row, time])
                advantage = batch["advantages"][row]
                total += min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
                tokens += 1
    return total / tokens


def reference_gradient(batch: dict[str, Array]) -> Array:
    """Central differences of reference_value."""
    gradient = np.zeros((ROWS, TIME))
    for index in np.ndindex(ROWS, TIME):
        nudge = np.zeros((ROWS, TIME))
        nudge[index] = 1e-6
        above = reference_value(batch, batch["logprobs"] + nudge)
        below = reference_value(batch, batch["logprobs"] - nudge)
        gradient[index] = (above - below) / 2e-6
    return gradient


def test_value_and_gradient_agree_with_an_independent_implementation(batch: dict[str, Array]) -> None:
    logprobs = jnp.asarray(batch["logprobs"], jnp.float32)
    with jax.numpy_dtype_promotion("strict"):
        value, gradient = jax.value_and_grad(lambda logprobs: grpo(CONFIG).value(terms_of(batch, logprobs)))(logprobs)
    assert float(value) == pytest.approx(reference_value(batch, batch["logprobs"]), abs=1e-6)
    np.testing.assert_allclose(gradient, reference_gradient(batch), atol=2e-6)


def test_the_example_has_clipped_and_unclipped_tokens(batch: dict[str, Array]) -> None:
    trained = batch["loss_mask"] > 0
    gradient = reference_gradient(batch)
    assert 0 < (gradient[trained] == 0.0).sum() < trained.sum()


def test_parts_of_a_batch_add_up(batch: dict[str, Array]) -> None:
    whole = terms_of(batch)
    parts = [Terms(*(leaf[rows] for leaf in whole)) for rows in (slice(0, 2), slice(2, 6))]
    objective = grpo(CONFIG)
    total = sum(float(objective.value(part)) for part in parts)
    assert total == pytest.approx(float(objective.value(whole)), abs=1e-6)


def test_correction_and_regulariser_are_separate_factors(batch: dict[str, Array]) -> None:
    preset = grpo(CONFIG)
    halved = Objective(preset.aggregate, lambda terms: 0.5 + zeros(terms), preset.gradient, zeros)
    raised = Objective(preset.aggregate, preset.correction, preset.gradient, preset.correction)
    value = float(preset.value(terms_of(batch)))
    assert float(halved.value(terms_of(batch))) == pytest.approx(0.5 * value, abs=1e-6)
    assert float(raised.value(terms_of(batch))) == pytest.approx(value + 1.0, abs=1e-6)


def test_metrics_are_means_over_trained_tokens(batch: dict[str, Array]) -> None:
    terms = terms_of(batch)
    entropies = jnp.full((ROWS, TIME), 0.25)
    found = {name: float(value) for name, value in metrics(terms, terms.weights, entropies, CONFIG).items()}
    log_ratio = (batch["logprobs"] - batch["behaviour_logprobs"])[batch["loss_mask"] > 0]
    ratio = np.exp(log_ratio)
    expected = {
        "ratio_mean": ratio.mean(),
        "clip_fraction": ((ratio < 0.8) | (ratio > 1.28)).mean(),
        "kl_k3": (ratio - 1.0 - log_ratio).mean(),
        "entropy": 0.25,
    }
    assert found == pytest.approx(expected, abs=1e-6)


def test_tokens_off_the_mask_cannot_overflow(batch: dict[str, Array]) -> None:
    batch["logprobs"] = np.where(batch["loss_mask"] > 0, batch["logprobs"], 1e30)
    logprobs = jnp.asarray(batch["logprobs"], jnp.float32)
    gradient = jax.grad(lambda logprobs: grpo(CONFIG).value(terms_of(batch, logprobs)))(logprobs)
    assert np.all(np.isfinite(gradient))


def test_advantages_are_normalised_within_each_group() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 5.0, 7.0, 1.0])
    groups = np.array([4, 9, 4, 9, 9, 4])
    found = group_normalised(rewards, groups, 1e-4)
    for group in (4, 9):
        own = rewards[groups == group]
        np.testing.assert_allclose(found[groups == group], (own - own.mean()) / (own.std() + 1e-4), rtol=1e-6)
    assert found.dtype == np.float32


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    assert np.all(group_normalised(np.full(4, 0.3), np.zeros(4, np.int64), 1e-4) == 0.0)
