from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.products.linear import Linear, carried, fp8_matmul
from rollcast.policy.products.quantise import ALONG_COLUMNS, ALONG_ROWS, WEIGHT_BLOCK, Block, dequantise, quantise
from tests.compiling import OPTIMISED

CARRIERS = [jnp.float32, jnp.bfloat16]
SHAPE = (2, 65, 130, 132)  # batch, time, inputs, outputs: a ragged block on every side

Array = np.ndarray[Any, Any]


def operands(carrier: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return x, master and dy."""
    batch, time, inputs, outputs = SHAPE
    random = np.random.default_rng(11)
    x = random.standard_normal((batch, time, inputs)) * np.exp(random.uniform(-4, 4, (batch, time, 1)))
    master, dy = random.standard_normal((inputs, outputs)) * 0.1, random.standard_normal((batch, time, outputs)) * 1e-5
    return jnp.asarray(x, carrier), jnp.asarray(master, jnp.float32), jnp.asarray(dy, carrier)


def values(matrix: jax.Array, block: Block) -> Array:
    """Return the values of the codes as f64."""
    flat = np.asarray(matrix, np.float32).reshape(-1, matrix.shape[-1])
    return np.asarray(through_codes(flat, block), np.float64)


@functools.partial(jax.jit, static_argnums=1)
def through_codes(matrix: jax.Array, block: Block) -> jax.Array:
    return dequantise(quantise(matrix, block), block)


def test_the_kernel_is_read_in_the_activations_precision() -> None:
    layer = Linear(2, 3)
    layer.kernel.set_value(jnp.array([[1.0, 2.0, 3.0], [0.5, 0.25, 1.001]], jnp.float32))
    product = layer(jnp.array([[2.0, 4.0]], jnp.bfloat16))
    assert product.dtype == jnp.bfloat16
    np.testing.assert_array_equal(product.astype(jnp.float32), [[4.0, 5.0, 10.0]])


def test_masters_are_rounded_even_where_float32_follows() -> None:
    masters = jnp.asarray(np.random.default_rng(0).standard_normal(64), jnp.float32)
    rounded = jax.jit(lambda weights: carried(weights, jnp.bfloat16).astype(jnp.float32), compiler_options=OPTIMISED)
    np.testing.assert_array_equal(rounded(masters), np.asarray(masters).astype(jnp.bfloat16).astype(np.float32))
    slope = jax.jit(jax.grad(lambda weights: jnp.sum(carried(weights, jnp.bfloat16))))(masters)
    np.testing.assert_array_equal(slope, np.ones(64))


def test_a_bias_is_added_in_the_activations_precision() -> None:
    layer = Linear(1, 2, bias=True)
    assert layer.bias is not None
    layer.bias.set_value(jnp.array([1.0, 1.001], jnp.float32))
    sums = layer(jnp.array([[0.0]], jnp.bfloat16))
    assert sums.dtype == jnp.bfloat16
    np.testing.assert_array_equal(sums.astype(jnp.float32), [[1.0, 1.0]])


@pytest.mark.parametrize("carrier", CARRIERS)
def test_all_three_products_have_operands_rounded_along_their_contraction(carrier: Any) -> None:
    x, master, dy = operands(carrier)

    @jax.jit
    def run(x: jax.Array, master: jax.Array, dy: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        product, pull = jax.vjp(fp8_matmul, x, master)
        return product, pull(dy)

    product, (dx, dmaster) = run(x, master, dy)
    assert (product.dtype, dx.dtype, dmaster.dtype) == (carrier, carrier, jnp.float32)
    kernel = values(master, WEIGHT_BLOCK)
    expected = (
        values(x, ALONG_COLUMNS) @ kernel,
        values(dy, ALONG_COLUMNS) @ kernel.T,
        values(x, ALONG_ROWS).T @ values(dy, ALONG_ROWS),
    )
    for got, exact in zip((product, dx, dmaster), expected, strict=True):
        wide = np.asarray(got, np.float64).reshape(exact.shape)
        precise = 1e-6 if got.dtype == jnp.float32 else 4e-3
        np.testing.assert_allclose(wide, exact, rtol=precise, atol=precise * np.abs(exact).max())


@pytest.mark.parametrize("carrier", CARRIERS)
def test_codes_and_the_master_give_the_same_bits(carrier: Any) -> None:
    x, master, _ = operands(carrier)
    layer = Linear(*SHAPE[2:])
    layer.set_flow("fp8-codes")
    assert layer.kernel_scale is not None
    codes, exponents = jax.jit(quantise, static_argnums=1)(master, WEIGHT_BLOCK)
    assert (layer.kernel.shape, layer.kernel_scale.shape) == (codes.shape, exponents.shape)
    layer.kernel.set_value(codes)
    layer.kernel_scale.set_value(exponents)
    by_codes, by_master = (jax.jit(run, compiler_options=OPTIMISED) for run in (layer, fp8_matmul))
    np.testing.assert_array_equal(by_codes(x), by_master(x, master))


def test_a_master_trains_through_the_layer() -> None:
    layer = Linear(4, 2)
    layer.set_flow("fp8-master")
    layer.kernel.set_value(jnp.ones((4, 2), jnp.float32))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(layer(x))))(jnp.ones((1, 4), jnp.float32))
    np.testing.assert_array_equal(gradient, np.full((1, 4), 2.0))
