"""Test logits over the vocabulary, and log-probabilities of tokens."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.logits import NoiseKeys, Tiles, TokenScores, token_scores
from rollcast.policy.logprobs import Forward, completion_logprobs
from rollcast.policy.noise import gumbel_numpy, seed_words
from rollcast.policy.params import initial_params
from tests.policy.tiny import TINY, reference_logits

ROWS, TIME, WIDTH, VOCABULARY = 2, 6, 8, 300

AT_ONCE = Tiles(elements=1 << 24)


def inputs() -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(ROWS, TIME, WIDTH)).astype(np.float32)
    weights = random.normal(size=(WIDTH, VOCABULARY)).astype(np.float32)
    targets = random.integers(0, VOCABULARY, (ROWS, TIME)).astype(np.int32)
    targets[0, 0], targets[0, 1] = 0, VOCABULARY - 1
    temperature = random.uniform(0.5, 1.5, (ROWS, TIME)).astype(np.float32)
    return jnp.asarray(hidden), jnp.asarray(weights), jnp.asarray(targets), jnp.asarray(temperature)


SEEDS = [[7 + 1000003 * row + time << 31 for time in range(TIME)] for row in range(ROWS)]


def noise_keys() -> NoiseKeys:
    words = np.array([[seed_words(seed) for seed in row] for row in SEEDS], np.uint32)
    return NoiseKeys(jnp.asarray(words), jnp.asarray(np.arange(ROWS * TIME, dtype=np.int32).reshape(ROWS, TIME)))


def value(hidden: jax.Array, weights: jax.Array, tiles: Tiles) -> tuple[jax.Array, TokenScores]:
    _, _, targets, temperature = inputs()
    scores = token_scores(hidden, weights, targets, temperature, tiles, noise_keys())
    of_token = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, TIME)), jnp.float32)
    return jnp.sum(of_token * scores.logprobs + 0.3 * of_token**2 * scores.entropies + scores.variances), scores


def test_each_target_is_scored_at_its_temperature() -> None:
    hidden, weights, targets, temperature = inputs()
    logprobs, entropies, variances, _ = token_scores(hidden, weights, targets, temperature, AT_ONCE)
    x = np.asarray(hidden, np.float64) @ np.asarray(weights, np.float64) / np.asarray(temperature)[..., None]
    shares = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    picked = np.take_along_axis(shares, np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(logprobs, np.log(picked), atol=5e-6)
    np.testing.assert_allclose(entropies, -(shares * np.log(shares)).sum(-1), atol=5e-6)
    expected = (shares * np.log(shares) ** 2).sum(-1) - (shares * np.log(shares)).sum(-1) ** 2
    np.testing.assert_allclose(variances, expected, rtol=1e-4)


def test_a_margin_is_the_distance_to_the_token_that_the_seed_samples() -> None:
    hidden, weights, targets, temperature = inputs()
    x = np.asarray(hidden @ weights) / np.asarray(temperature)[..., None]
    noise = [
        gumbel_numpy(seed, row * TIME + time, VOCABULARY) for row in range(ROWS) for time, seed in enumerate(SEEDS[row])
    ]
    noisy = x + np.array(noise).reshape(ROWS, TIME, VOCABULARY)
    sampled = noisy.argmax(-1).astype(np.int32)
    score = jax.jit(token_scores, static_argnums=4)
    honest = score(hidden, weights, jnp.asarray(sampled), temperature, AT_ONCE, noise_keys()).margins
    assert np.array_equal(honest, np.zeros((ROWS, TIME), np.float32))
    found = score(hidden, weights, targets, temperature, AT_ONCE, noise_keys()).margins
    expected = noisy.max(-1) - np.take_along_axis(noisy, np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert not token_scores(hidden, weights, targets, temperature, AT_ONCE).margins.any()


@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(elements=ROWS * TIME * 128),  # three tiles of columns, the last one overlapping
        Tiles(elements=1, vocabulary_shards=2),
        Tiles(elements=1, vocabulary_shards=7),  # 300 columns do not divide by 7
    ],
)
def test_tiles_give_the_values_and_gradients_of_whole_logits(tiles: Tiles) -> None:
    hidden, weights, _, _ = inputs()
    gradient = jax.value_and_grad(value, argnums=(0, 1), has_aux=True)
    (_, scores), gradients = jax.jit(gradient, static_argnums=2)(hidden, weights, tiles)
    (_, expected_scores), expected = gradient(hidden, weights, AT_ONCE)
    for found, wanted in zip((*scores, *gradients), (*expected_scores, *expected), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_logits_are_never_whole() -> None:
    """No array in the program of the gradient is larger than a tile."""
    rows, time, width, vocabulary = 4, 64, 16, 1024
    arrays = (
        jax.ShapeDtypeStruct((rows, time, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((width, vocabulary), jnp.float32),
        jax.ShapeDtypeStruct((rows, time), jnp.int32),
        jax.ShapeDtypeStruct((rows, time), jnp.float32),
    )
    tiles = Tiles(elements=rows * time * 128)
    keys = NoiseKeys(jnp.zeros((rows, time, 2), jnp.uint32), jnp.zeros((rows, time), jnp.int32))

    def total(hidden: jax.Array, weights: jax.Array, targets: jax.Array, temperature: jax.Array) -> jax.Array:
        scores = token_scores(hidden, weights, targets, temperature, tiles, keys)
        return jnp.sum(scores.logprobs) + jnp.sum(scores.entropies) + jnp.sum(scores.margins)

    text = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(*arrays))
    shapes = [[int(size) for size in shape.split(",")] for shape in re.findall(r"\w\d+\[([\d,]+)\]", text)]
    assert max(math.prod(shape) for shape in shapes) == tiles.elements


score = jax.jit(completion_logprobs, static_argnums=0)


def test_tokens_are_scored_given_the_earlier_ones() -> None:
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
        found = completion_logprobs(TINY, candidate, *row, forward=forward)
        return jnp.sum(found.logprobs) + jnp.sum(found.entropies)

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    plain = gradient(params, Forward())
    other = gradient(params, Forward(remat=True, tiles=Tiles(elements=16)))
    for name, wanted in plain.items():
        np.testing.assert_allclose(other[name], wanted, atol=2e-5, err_msg=name)
