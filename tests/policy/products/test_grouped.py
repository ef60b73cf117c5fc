"""Test grouped products against a loop over experts, in each flow."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.products.grouped import GroupedLinear, Kernel, grouped_matmul
from rollcast.policy.products.linear import Flow, carrier_matmul, fp8_matmul
from rollcast.policy.products.quantise import WEIGHT_BLOCK, quantise

SIZES = np.array([5, 0, 3, 8], np.int32)  # an expert without rows is among them
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(0, 1, (16, 12)).astype(np.float32)
MASTERS = RANDOM.normal(0, 1, (4, 12, 10)).astype(np.float32)
DY = RANDOM.normal(0, 1, (16, 10)).astype(np.float32)


def by_experts(x: jax.Array, masters: jax.Array, flow: Flow) -> jax.Array:
    """Multiply the rows of one expert after the other by linear layers' products."""
    multiply: Any = fp8_matmul if flow == "fp8-master" else functools.partial(carrier_matmul, x.dtype)
    ends = np.cumsum(SIZES)
    parts = [
        multiply(x[end - size : end], masters[one]) for one, (end, size) in enumerate(zip(ends, SIZES, strict=True))
    ]
    return jnp.concatenate(parts)


@pytest.mark.parametrize(
    ("flow", "carrier", "tolerance"),
    [("carrier", "bfloat16", 0.02), pytest.param("fp8-master", "float32", 1e-5, marks=pytest.mark.slow)],
)
def test_products_and_gradients_are_those_of_single_experts(flow: Flow, carrier: str, tolerance: float) -> None:
    @jax.jit
    def both(x: jax.Array, masters: jax.Array, dy: jax.Array) -> Any:
        grouped = jax.vjp(lambda x, masters: grouped_matmul(x, Kernel(masters, None), SIZES, flow), x, masters)
        single = jax.vjp(lambda x, masters: by_experts(x, masters, flow), x, masters)
        return [(value, *pull(dy)) for value, pull in (grouped, single)]

    found, expected = both(X.astype(carrier), MASTERS, DY.astype(carrier))
    assert [leaf.dtype for leaf in found] == [carrier, carrier, jnp.float32]
    for own, theirs in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(own, theirs, atol=tolerance * np.abs(theirs).max())
    if flow == "carrier":  # groups of rows, which share a scale in E4M3, cross from one expert to the next
        np.testing.assert_allclose(found[2], expected[2], atol=tolerance * np.abs(expected[2]).max())
    assert not np.any(np.asarray(found[2])[1])


def test_codes_give_the_masters_values() -> None:
    codes, exponents = quantise(jnp.asarray(MASTERS), WEIGHT_BLOCK)
    multiply = jax.jit(grouped_matmul, static_argnums=3)
    rollout = multiply(X, Kernel(codes, exponents), SIZES, "fp8-codes")
    assert np.array_equal(rollout, multiply(X, Kernel(MASTERS, None), SIZES, "fp8-master"))


def test_codes_have_an_exponent_for_each_block_of_each_expert() -> None:
    linear = GroupedLinear(3, 130, 200)
    assert linear.read().scale is None
    linear.set_flow("fp8-codes")
    kernel = linear.read()
    assert kernel.scale is not None
    assert (kernel.kernel.shape, kernel.kernel.dtype) == ((3, 130, 200), jnp.float8_e4m3fn)
    assert (kernel.scale.shape, kernel.scale.dtype) == ((3, 2, 2), jnp.int8)
