from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rollcast.policy.logprobs import completion_logprobs, token_statistics
from rollcast.policy.params import initial_params
from tests.policy.tiny import TINY, reference_logits


def test_tokens_are_scored_by_the_logits_before_them_at_the_rows_temperature() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 4, 5)).astype(np.float32)
    tokens = random.integers(0, 5, (2, 4)).astype(np.int32)
    temperature = np.array([1.0, 0.5], np.float32)
    found = token_statistics(jnp.asarray(logits), jnp.asarray(tokens), jnp.asarray(temperature))
    for row in range(2):
        assert found.logprobs[row, 0] == 0.0
        for time in range(1, 4):
            weights = np.exp(logits[row, time - 1].astype(np.float64) / temperature[row])
            shares = weights / weights.sum()
            np.testing.assert_allclose(found.logprobs[row, time], np.log(shares[tokens[row, time]]), atol=1e-6)
            np.testing.assert_allclose(found.entropies[row, time], -(shares * np.log(shares)).sum(), atol=1e-6)


def test_the_model_is_run_on_padded_rows() -> None:
    params = initial_params(TINY, 0)
    tokens = jnp.array([[5, 3, 2, 0]], jnp.int32)
    positions = jnp.array([[0, 1, 2, 0]], jnp.int32)
    segments = jnp.array([[1, 1, 1, 0]])
    found = jax.jit(completion_logprobs, static_argnums=0)(TINY, params, tokens, positions, segments, jnp.ones(1))
    logits = reference_logits(TINY, params, [5, 3, 2])
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.logprobs[0, 1:3], np.log([shares[0, 3], shares[1, 2]]), atol=3e-6)
