"""Test the optimiser and its moments in low precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner.config import MeshConfig, OptimiserConfig
from learner.training import optimiser
from learner.training.mesh import make_mesh
from learner.training.moments import (
    Coded,
    block_size,
    chance,
    decode_first,
    decode_second,
    encode_first,
    encode_second,
    to_bfloat16,
)
from learner.training.optimiser import Updates, updates
from rollcast.policy.params import Params

MESH = make_mesh(MeshConfig())

KERNEL = "layers.0.attention.query.kernel"

TARGET = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)


def start() -> Params:
    return {KERNEL: jnp.zeros((8, 64)), "final_norm.scale": jnp.ones(64)}


def gradients_of(params: Params) -> Params:
    return {KERNEL: params[KERNEL] - TARGET, "final_norm.scale": 0.1 * (params["final_norm.scale"] - 2.0)}


def trained(adam: Updates, steps: int) -> tuple[Params, Any, float]:
    params, norm = start(), jnp.float32(0.0)
    state = adam.init(params)
    for _ in range(steps):
        params, state, norm = adam.apply(gradients_of(params), state, params, jnp.bool_(True))
    return {name: np.asarray(leaf) for name, leaf in params.items()}, state, float(norm)


def test_float32_is_adam_with_clipping() -> None:
    config = OptimiserConfig(max_grad_norm=0.5)
    found, _, norm = trained(updates(config, 0.1, MESH), 3)
    reference = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1, b1=config.b1, b2=config.b2))
    params, expected_norm = start(), 0.0
    state = reference.init(params)
    for _ in range(3):
        gradients = gradients_of(params)
        expected_norm = float(optax.tree.norm(gradients))
        changes, state = reference.update(gradients, state, params)
        params = optax.apply_updates(params, changes)
    for name, expected in params.items():
        np.testing.assert_allclose(found[name], expected, atol=1e-6)
    assert norm == pytest.approx(expected_norm, rel=1e-5)


@pytest.mark.parametrize("b2", [0.95, 0.999])
@pytest.mark.parametrize("state_dtype", ["bfloat16", "int8"])
def test_small_states_reach_the_result_of_float32(state_dtype: str, b2: float) -> None:
    values: dict[str, Any] = {"max_grad_norm": 100.0, "b2": b2}
    small, state, _ = trained(updates(OptimiserConfig(state_dtype=state_dtype, **values), 0.02, MESH), 150)
    large, _, _ = trained(updates(OptimiserConfig(**values), 0.02, MESH), 150)
    error = np.abs(small[KERNEL] - TARGET)
    assert error.mean() < np.abs(large[KERNEL] - TARGET).mean() + 0.02
    assert error.max() < np.abs(large[KERNEL] - TARGET).max() + 0.1
    sizes = {str(leaf.dtype): leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.size == TARGET.size}
    assert sizes == ({"bfloat16": 1024} if state_dtype == "bfloat16" else {"int8": 512, "uint8": 512})


def test_small_states_give_reproducible_bits() -> None:
    adam = updates(OptimiserConfig(state_dtype="int8"), 0.02, MESH)
    first, _, _ = trained(adam, 5)
    second, _, _ = trained(adam, 5)
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("state_dtype", ["float32", "int8"])
def test_moments_on_the_host_make_the_same_steps(state_dtype: str) -> None:
    config = OptimiserConfig(state_dtype=state_dtype, max_grad_norm=0.5)
    here, _, norm = trained(updates(config, 0.1, MESH), 3)
    config = config.model_copy(update={"offload": True})
    there, state, host_norm = trained(updates(config, 0.1, MESH), 3)
    for name, expected in here.items():
        np.testing.assert_allclose(there[name], expected, atol=1e-6)
    assert host_norm == pytest.approx(norm)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state[1:])} == {"pinned_host"}


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16", "int8"])
def test_a_tensor_alone_makes_the_same_steps(state_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optimisers = [updates(OptimiserConfig(state_dtype=state_dtype), 0.1, MESH) for _ in range(2)]
    together, _, _ = trained(optimisers[0], 3)
    monkeypatch.setattr(optimiser, "ALONE_ELEMENTS", 1)
    alone, _, _ = trained(optimisers[1], 3)
    for name, expected in together.items():
        np.testing.assert_array_equal(alone[name], expected)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("value", "sound"), [(np.nan, True), (np.inf, True), (1e30, True), (1.0, False)])
def test_a_step_that_is_not_finite_changes_no_bit(form: str, value: float, sound: bool) -> None:
    adam = updates(OptimiserConfig.model_validate({"state_dtype": form}), 0.1, MESH)
    params = start()
    params, state, _ = adam.apply(gradients_of(params), adam.init(params), params, jnp.bool_(True))
    before = jax.tree.map(np.array, (params, state))
    gradients = gradients_of(params)
    gradients[KERNEL] = gradients[KERNEL].at[3, 5].set(value)  # the square of 1e30 overflows in float32
    *after, _ = adam.apply(gradients, state, params, jnp.bool_(sound))
    jax.tree.map(np.testing.assert_array_equal, before, tuple(after))


def test_gradients_are_used_up() -> None:
    params = start()
    gradients = gradients_of(params)
    adam = updates(OptimiserConfig(), 0.1, MESH)
    adam.apply(gradients, adam.init(params), params, jnp.bool_(True))
    assert not gradients


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
