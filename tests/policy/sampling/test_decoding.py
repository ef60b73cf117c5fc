from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rollcast.policy.noise import gumbel_numpy
from rollcast.policy.sampling.decoding import Controls, sample_tokens, stop_row
from rollcast.wire.limits import STOP_TOKENS_MAX

VOCABULARY = 50


def controls(noise_scale: float) -> Controls:
    nothing = jnp.zeros(2, jnp.int32)
    temperatures = jnp.array([1.0, 0.5], jnp.float32)
    seeds = jnp.array([[0, 7], [0, 8]], jnp.uint32)
    return Controls(nothing, nothing, nothing, nothing, seeds, nothing, temperatures, nothing, jnp.float32(noise_scale))


def test_tokens_are_sampled_with_the_seeds_noise_and_scored_without_it() -> None:
    logits = np.random.default_rng(0).standard_normal((2, VOCABULARY)).astype(np.float32)
    for noise_scale in (0.0, 1.0):
        tokens, logprobs = sample_tokens(jnp.asarray(logits), jnp.array([3, 4], jnp.int32), controls(noise_scale))
        for row, (temperature, seed, position) in enumerate(((1.0, 7, 3), (0.5, 8, 4))):
            scaled = logits[row] / np.float32(temperature)
            noisy = scaled + noise_scale * gumbel_numpy(seed, position, VOCABULARY)
            assert tokens[row] == np.argmax(noisy)
            wide = scaled.astype(np.float64)
            expected = wide[int(tokens[row])] - np.log(np.exp(wide).sum())
            np.testing.assert_allclose(logprobs[row], expected, atol=1e-6)


def test_of_equal_values_the_first_is_taken() -> None:
    logits = jnp.zeros((2, VOCABULARY), jnp.float32).at[:, jnp.array([9, 4, 30])].set(1.0)
    assert sample_tokens(logits, jnp.zeros(2, jnp.int32), controls(0.0))[0].tolist() == [4, 4]


def test_rows_of_stop_tokens_are_filled_up_with_no_token() -> None:
    assert stop_row((5, 6)) == [5, 6, *[-1] * (STOP_TOKENS_MAX - 2)]
