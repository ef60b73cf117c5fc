from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32

from rollcast.policy.logits import gumbel
from rollcast.policy.noise import gumbel_numpy, seed_words, threefry2x32, uniforms
from tests.compiling import OPTIMISED


def words(*values: int) -> list[np.ndarray[tuple[int], np.dtype[np.uint32]]]:
    return [np.full(1, value, np.uint32) for value in values]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers_of_random123(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    x0, x1 = threefry2x32(*words(*key), *words(*counter))
    assert (int(x0[0]), int(x1[0])) == expected


def test_threefry_agrees_with_jax() -> None:
    counters = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    key = words(7, 2**31 + 5)
    expected = threefry_2x32(jnp.asarray(np.concatenate(key)), jnp.asarray(counters))
    ours = np.concatenate(threefry2x32(*key, counters[:32], counters[32:]))
    np.testing.assert_array_equal(ours, expected)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1))
def test_jax_and_numpy_compute_the_same_noise(seed: int, position: int) -> None:
    seeds = jnp.array([seed_words(seed)], jnp.uint32)
    ours = gumbel(seeds, jnp.array([position], jnp.int32), jnp.arange(17))
    np.testing.assert_allclose(ours, gumbel_numpy(seed, position, 17), rtol=1e-5, atol=1e-6)


def test_bits_before_the_logarithms_are_equal_in_jax_and_numpy() -> None:
    counters = np.arange(4096, dtype=np.uint32)
    key = words(*seed_words(2**64 - 3))
    expected = uniforms(threefry2x32(*key, counters, counters)[0])
    compiled = jax.jit(lambda *arrays: uniforms(threefry2x32(*arrays)[0]), compiler_options=OPTIMISED)
    ours = compiled(*map(jnp.asarray, (*key, counters, counters)))
    np.testing.assert_array_equal(np.asarray(ours).view(np.uint32), expected.view(np.uint32))


def test_the_extreme_uniforms_are_strictly_between_zero_and_one() -> None:
    lowest, highest = uniforms(np.array([0, 2**32 - 1], np.uint32))
    assert lowest == 2.0**-24
    assert highest == 1.0 - 2.0**-24


def test_noise_is_gumbel_distributed_and_differs_by_seed_position_and_token() -> None:
    noise = np.stack([gumbel_numpy(seed, position, 100) for seed in range(20) for position in range(20)])
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.05)
    assert len(np.unique(noise)) > 0.99 * noise.size


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_are_unsigned_64_bit(seed: int) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        seed_words(seed)
