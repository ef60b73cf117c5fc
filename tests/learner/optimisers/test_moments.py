"""Test moments in low precision."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.optimisers.moments import (
    Coded,
    block_size,
    chance,
    decode_first,
    decode_second,
    encode_first,
    encode_second,
    to_bfloat16,
)

SHAPE = (16, 512)


def values() -> jax.Array:
    """Return values of very different sizes, as moments have."""
    random = np.random.default_rng(0)
    return jnp.asarray(random.normal(size=SHAPE) * 10.0 ** random.uniform(-4, 0, SHAPE), jnp.float32)


def chances(seed: int = 1) -> jax.Array:
    return chance(SHAPE, jnp.uint32(seed))


def test_chances_are_even_and_differ_from_step_to_step() -> None:
    sampled = np.asarray(chances())
    assert 0.0 <= sampled.min() < 0.001
    assert 0.999 < sampled.max() < 1.0
    counts = np.histogram(sampled, bins=16, range=(0.0, 1.0))[0]
    np.testing.assert_allclose(counts / counts.mean(), 1.0, atol=0.2)
    for shifted in (np.roll(sampled, 1, 0), np.roll(sampled, 1, 1), np.asarray(chances(2))):
        assert abs(np.corrcoef(sampled.ravel(), shifted.ravel())[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("encode", "decode", "tolerance"), [(encode_first, decode_first, 0.02), (encode_second, decode_second, 0.02)]
)
def test_codes_are_close_and_right_on_average(
    encode: Callable[[jax.Array, jax.Array], Coded], decode: Callable[[Coded], jax.Array], tolerance: float
) -> None:
    exact = values() if encode is encode_first else jnp.square(values())
    found = np.stack([decode(encode(exact, chances(seed))) for seed in range(10)])
    assert found.shape[1:] == SHAPE
    assert np.abs(found - exact).max() < tolerance * np.abs(exact).max()
    small = np.abs(exact) < 0.01 * np.abs(exact).max()
    for chosen in (small, ~small):
        error = np.sign(exact) * (found.mean(0) - exact)
        assert abs(error[chosen].mean()) < 0.01 * np.abs(exact)[chosen].mean()


def test_bfloat16_is_one_of_the_two_neighbours_and_right_on_average() -> None:
    exact = values()
    found = jnp.stack([to_bfloat16(exact, chances(seed)).astype(jnp.float32) for seed in range(10)])
    assert float((jnp.abs(found - exact) / jnp.abs(exact)).max()) <= 2.0**-7
    error = (found.mean(0) - exact) / exact
    assert abs(float(error.mean())) < 1e-4


def test_a_code_of_nothing_is_nothing_and_divisors_are_not_zero() -> None:
    zeros = jnp.zeros(SHAPE)
    assert float(jnp.abs(decode_first(encode_first(zeros, chances()))).max()) == 0.0
    assert float(decode_second(encode_second(zeros, chances())).max()) == 0.0
    one_large = jnp.zeros(SHAPE).at[:, 0].set(1.0)
    assert float(decode_second(encode_second(one_large, chances()))[0, 1]) > 0.0
    assert encode_second(one_large, chances()).codes.dtype == jnp.uint8


def test_blocks_divide_the_last_axis() -> None:
    assert [block_size(size) for size in (512, 200, 151936, 97, 7 * 300)] == [256, 200, 128, 97, 210]
    assert encode_first(values(), chances()).scales.shape == (16, 2)
