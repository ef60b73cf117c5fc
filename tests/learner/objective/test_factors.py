from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.objective import factors
from learner.objective.config import ObjectiveConfig
from learner.objective.objective import Terms, current_to_behaviour
from tests.learner.objective.packed_example import completions, terms_of

WEIGHTS = jnp.array([0.1, 0.5, 1.0, 2.0, 9.0])


@pytest.fixture(scope="module")
def terms() -> Terms:
    return terms_of(ObjectiveConfig(), completions(6, 0.4))


def test_bounds() -> None:
    assert factors.truncated(2.0)(WEIGHTS).tolist() == pytest.approx([0.1, 0.5, 1.0, 2.0, 2.0])
    assert factors.clipped(0.5, 2.0)(WEIGHTS).tolist() == pytest.approx([0.5, 0.5, 1.0, 2.0, 2.0])
    assert factors.two_sided(0.5, 5.0)(WEIGHTS).tolist() == pytest.approx([0.0, 0.5, 1.0, 2.0, 0.0])


def test_a_surrogate_at_ratio_1_has_the_gradient_of_the_log_probability(terms: Terms) -> None:
    on_policy = terms._replace(behaviour_logprobs=terms.logprobs)

    def gradient(factor: factors.Factor) -> jax.Array:
        return jax.grad(lambda logprobs: jnp.sum(factor(on_policy._replace(logprobs=logprobs))))(terms.logprobs)

    expected = gradient(factors.log_probability)
    np.testing.assert_allclose(gradient(factors.clipped_surrogate(0.2, 0.2, current_to_behaviour)), expected, atol=1e-6)
    by_sequence = gradient(factors.sequence_clipped_surrogate(0.2, 0.2, current_to_behaviour))
    np.testing.assert_allclose(by_sequence, expected, atol=1e-5)  # one advantage a sequence: sums over it are the same


def test_k1_and_k2_pull_the_same_way(terms: Terms) -> None:
    def gradient(factor: factors.Factor) -> jax.Array:
        return jax.grad(lambda logprobs: jnp.sum(factor(terms._replace(logprobs=logprobs))))(terms.logprobs)

    np.testing.assert_allclose(gradient(factors.k1), gradient(factors.k2), atol=1e-6)


def test_k3_is_never_negative_and_agrees_with_k1_for_small_steps(terms: Terms) -> None:
    assert float(factors.k3(terms).min()) >= -1e-6
    near = terms._replace(reference_logprobs=terms.logprobs + 1e-2)
    np.testing.assert_allclose(factors.k3(near), factors.k2(near), atol=1e-6)


def test_a_weighted_sum_of_nothing_is_nothing(terms: Terms) -> None:
    assert float(jnp.abs(factors.weighted_sum([])(terms)).max()) == 0.0
    doubled = factors.weighted_sum([(2.0, factors.entropy), (1.0, factors.entropy)])(terms)
    np.testing.assert_allclose(doubled, 0.75 * terms.loss_mask, atol=1e-6)
