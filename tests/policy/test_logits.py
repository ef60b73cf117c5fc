from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.logits import Tiles, TokenScores, token_scores

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


def value(hidden: jax.Array, weights: jax.Array, tiles: Tiles) -> tuple[jax.Array, TokenScores]:
    _, _, targets, temperature = inputs()
    scores = token_scores(hidden, weights, targets, temperature, tiles)
    of_token = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, TIME)), jnp.float32)
    return jnp.sum(of_token * scores.logprobs + 0.3 * of_token**2 * scores.entropies + scores.variances), scores


def test_each_target_is_scored_at_its_temperature() -> None:
    hidden, weights, targets, temperature = inputs()
    logprobs, entropies, variances = token_scores(hidden, weights, targets, temperature, AT_ONCE)
    x = np.asarray(hidden, np.float64) @ np.asarray(weights, np.float64) / np.asarray(temperature)[..., None]
    shares = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    picked = np.take_along_axis(shares, np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(logprobs, np.log(picked), atol=5e-6)
    np.testing.assert_allclose(entropies, -(shares * np.log(shares)).sum(-1), atol=5e-6)
    expected = (shares * np.log(shares) ** 2).sum(-1) - (shares * np.log(shares)).sum(-1) ** 2
    np.testing.assert_allclose(variances, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(elements=ROWS * TIME * 128),  # three tiles of columns, the last one overlapping
        Tiles(elements=ROWS * 4 * 128),  # fewer tokens at a time too, and some that only fill up
        Tiles(elements=ROWS * TIME * 2 * 128, vocabulary_shards=2),
    ],
)
def test_tiles_give_the_values_and_gradients_of_the_whole(tiles: Tiles) -> None:
    hidden, weights, _, _ = inputs()
    gradient = jax.value_and_grad(value, argnums=(0, 1), has_aux=True)
    (_, scores), gradients = jax.jit(gradient, static_argnums=2)(hidden, weights, tiles)
    (_, expected_scores), expected = gradient(hidden, weights, AT_ONCE)
    for found, wanted in zip((*scores, *gradients), (*expected_scores, *expected), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_logits_are_never_whole() -> None:
    """Nothing in the program of the gradient is larger than a tile."""
    rows, time, width, vocabulary = 4, 64, 16, 1024
    arrays = (
        jax.ShapeDtypeStruct((rows, time, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((width, vocabulary), jnp.float32),
        jax.ShapeDtypeStruct((rows, time), jnp.int32),
        jax.ShapeDtypeStruct((rows, time), jnp.float32),
    )
    tiles = Tiles(elements=rows * time * 128)

    def total(hidden: jax.Array, weights: jax.Array, targets: jax.Array, temperature: jax.Array) -> jax.Array:
        logprobs, entropies, _ = token_scores(hidden, weights, targets, temperature, tiles)
        return jnp.sum(logprobs) + jnp.sum(entropies)

    text = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(*arrays))
    shapes = [[int(size) for size in shape.split(",")] for shape in re.findall(r"\w\d+\[([\d,]+)\]", text)]
    assert max(math.prod(shape) for shape in shapes) == tiles.elements
