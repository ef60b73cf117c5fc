from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rollcast.policy.logits import Tiles
from rollcast.policy.logprobs import Forward, completion_logprobs
from rollcast.policy.params import initial_params
from tests.policy.tiny import TINY, reference_logits

score = jax.jit(completion_logprobs, static_argnums=(0, 6))


def test_tokens_are_scored_by_what_is_before_them() -> None:
    params = initial_params(TINY, 0)
    tokens = jnp.array([[5, 3, 2, 0]], jnp.int32)
    positions = jnp.array([[0, 1, 2, 0]], jnp.int32)
    segments = jnp.array([[1, 1, 1, 0]])
    found = score(TINY, params, tokens, positions, segments, jnp.array([0.5], jnp.float32))
    logits = reference_logits(TINY, params, [5, 3, 2]) / 0.5
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.logprobs[0], [0.0, np.log(shares[0, 3]), np.log(shares[1, 2]), 0.0], atol=3e-6)
    entropies = -(shares * np.log(shares)).sum(-1)
    np.testing.assert_allclose(found.entropies[0], [0.0, entropies[0], entropies[1], 0.0], atol=3e-6)


def test_packed_sequences_score_as_they_do_alone() -> None:
    params = initial_params(TINY, 0)
    first, second = [5, 3, 2], [7, 1, 4, 4]
    tokens = jnp.array([first + second + [0]], jnp.int32)
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0]], jnp.int32)
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]], jnp.int32)
    temperature = jnp.array([[0.5] * 3 + [2.0] * 5], jnp.float32)
    packed = score(TINY, params, tokens, positions, segments, temperature)
    start = 0
    for sequence, own in ((first, 0.5), (second, 2.0)):
        time = len(sequence)
        row = (
            jnp.array([sequence], jnp.int32),
            jnp.arange(time, dtype=jnp.int32)[None],
            jnp.ones((1, time), jnp.int32),
        )
        alone = score(TINY, params, *row, jnp.array([own], jnp.float32))
        for found, wanted in zip(packed, alone, strict=True):
            np.testing.assert_allclose(found[0, start : start + time], wanted[0], atol=2e-6)
        start += time


def test_how_it_is_computed_does_not_change_the_gradient() -> None:
    params = initial_params(TINY, 0)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 8)), jnp.int32)
    row = (tokens, jnp.tile(jnp.arange(8, dtype=jnp.int32), (2, 1)), jnp.ones((2, 8), jnp.int32), jnp.ones(2))

    def total(candidate: dict[str, jax.Array], forward: Forward) -> jax.Array:
        found = completion_logprobs(TINY, candidate, *row, forward)
        return jnp.sum(found.logprobs) + jnp.sum(found.entropies)

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    plain = gradient(params, Forward())
    other = gradient(params, Forward(remat=True, tiles=Tiles(elements=16)))
    for name, wanted in plain.items():
        np.testing.assert_allclose(other[name], wanted, atol=2e-5, err_msg=name)
