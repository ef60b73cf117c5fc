from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.policy.products.quantise import (
    ALONG_COLUMNS,
    ALONG_ROWS,
    EXPONENT_MAX,
    EXPONENT_MIN,
    LARGEST,
    WEIGHT_BLOCK,
    Block,
    blocks_of,
    dequantise,
    quantise,
    rounded,
)
from tests.compiling import OPTIMISED

BLOCKS = [WEIGHT_BLOCK, ALONG_COLUMNS, ALONG_ROWS]

Array = np.ndarray[Any, Any]

jit_quantise = jax.jit(quantise, static_argnums=1, compiler_options=OPTIMISED)
jit_dequantise = jax.jit(dequantise, static_argnums=1, compiler_options=OPTIMISED)
jit_rounded = jax.jit(rounded, static_argnums=1, compiler_options=OPTIMISED)


def reference(matrix: Array, block: Block) -> tuple[Array, Array]:
    """Return codes (as bytes) and exponents, block by block in float64 and by the library's own cast."""
    rows, columns = blocks_of(matrix.shape, block)
    codes, exponents = np.zeros(matrix.shape, ml_dtypes.float8_e4m3fn), np.zeros((rows, columns), np.int8)
    for row in range(rows):
        for column in range(columns):
            part = np.s_[row * block[0] : (row + 1) * block[0], column * block[1] : (column + 1) * block[1]]
            largest = float(np.abs(matrix[part]).max())
            exponent = EXPONENT_MIN
            while largest > LARGEST * 2.0**exponent:
                exponent += 1
            exponents[row, column] = exponent
            codes[part] = (matrix[part].astype(np.float64) / 2.0**exponent).astype(np.float32).astype(codes.dtype)
    return codes.view(np.uint8), exponents


@functools.cache
def spread_out(shape: tuple[int, int]) -> Array:
    """Return numbers of very different sizes."""
    random = np.random.default_rng(7)
    return (random.standard_normal(shape) * np.exp(random.uniform(-30, 10, shape))).astype(np.float32)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("shape", [(256, 128), (130, 257), (5, 24)])
def test_codes_and_exponents_are_those_of_a_plain_loop(shape: tuple[int, int], block: Block) -> None:
    matrix = spread_out(shape)
    quantised = jit_quantise(matrix, block)
    codes, exponents = reference(matrix, block)
    np.testing.assert_array_equal(np.asarray(quantised.codes).view(np.uint8), codes)
    np.testing.assert_array_equal(quantised.exponents, exponents)
    assert quantised.exponents.dtype == jnp.int8


@pytest.mark.parametrize("block", BLOCKS)
def test_rounding_is_quantising_and_back_to_the_bit(block: Block) -> None:
    matrix = spread_out((130, 257))
    np.testing.assert_array_equal(jit_rounded(matrix, block), jit_dequantise(jit_quantise(matrix, block), block))


def test_every_tie_goes_to_the_even_code() -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    grid = np.sort(codes[np.isfinite(codes)])
    ties = (grid[1:] + grid[:-1]) / 2
    near = np.concatenate([grid, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    group = near[:, None] * np.ones((1, 2), np.float32)
    group[:, 1] = LARGEST  # the exponent is 0
    quantised = jit_quantise(group, ALONG_COLUMNS)
    assert not np.any(quantised.exponents)
    np.testing.assert_array_equal(quantised.codes[:, 0], near.astype(ml_dtypes.float8_e4m3fn))


@settings(deadline=None, max_examples=50)
@given(st.integers(-148, 127), st.sampled_from([1.0, 1.75, float(np.nextafter(np.float32(1.75), np.float32(2.0)))]))
def test_the_scale_is_the_least_power_of_two_that_holds_the_largest(power: int, mantissa: float) -> None:
    matrix = np.full((1, 1), np.ldexp(np.float32(mantissa), power), np.float32)
    exponent = int(jit_quantise(matrix, ALONG_COLUMNS).exponents[0, 0])
    assert EXPONENT_MIN <= exponent <= EXPONENT_MAX
    if exponent < EXPONENT_MAX:
        assert float(matrix[0, 0]) <= LARGEST * 2.0**exponent
    if exponent > EXPONENT_MIN:
        assert float(matrix[0, 0]) > LARGEST * 2.0 ** (exponent - 1)


def test_values_without_a_good_scale_are_defined() -> None:
    largest, least = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
    rows = np.array(
        [
            [0.0, -0.0, 0.0],
            [least / 2, -least / 4, 0.0],  # below the normal range
            [largest, -largest, 1.0],
            [np.nan, 3.0, -0.4],
            [np.inf, -np.inf, 7.0],
        ],
        np.float32,
    )
    quantised = jit_quantise(rows, ALONG_COLUMNS)
    saturated = LARGEST * 2.0**EXPONENT_MAX
    values = jit_dequantise(quantised, ALONG_COLUMNS)
    expected = [[0, 0, 0], [0, 0, 0], [saturated, -saturated, 0], [np.nan, 3, -0.40625], [np.nan, np.nan, 7]]
    np.testing.assert_array_equal(values, np.array(expected, np.float32))
    np.testing.assert_array_equal(jit_rounded(rows, ALONG_COLUMNS), values)
    np.testing.assert_array_equal(quantised.exponents[:, 0], [EXPONENT_MIN, EXPONENT_MIN, EXPONENT_MAX, -7, -6])
    assert np.all(np.isfinite(jnp.asarray(saturated, jnp.bfloat16).astype(jnp.float32)))


def test_values_are_bfloat16_too() -> None:
    values = jit_rounded(spread_out((130, 257)), WEIGHT_BLOCK)
    np.testing.assert_array_equal(values.astype(jnp.bfloat16).astype(jnp.float32), values)


def test_a_bfloat16_matrix_is_quantised_as_its_float32_form() -> None:
    matrix = jnp.asarray(spread_out((5, 24))).astype(jnp.bfloat16)
    wide = jit_quantise(matrix.astype(jnp.float32), ALONG_COLUMNS)
    for one, other in zip(jit_quantise(matrix, ALONG_COLUMNS), wide, strict=True):
        np.testing.assert_array_equal(one, other)


def test_codes_are_those_of_qwix() -> None:
    qarray = pytest.importorskip("qwix._src.core.qarray")
    matrix = np.random.default_rng(3).standard_normal((256, 384)).astype(np.float32)
    # A largest number of 448 * 2^-10 in each block makes its scale, amax / 448, a power of two.
    matrix[::128, ::128] = LARGEST * 2.0**-6
    how = qarray.HowToQuantize(qtype="float8_e4m3fn", tiled_axes={0: 128, 1: 128}, calibration_method="absmax")
    theirs = qarray.quantize(jnp.asarray(matrix), how)
    ours = jit_quantise(matrix, WEIGHT_BLOCK)
    np.testing.assert_array_equal(np.asarray(theirs.qvalue).reshape(256, 384), ours.codes)
    np.testing.assert_array_equal(np.asarray(theirs.scale).reshape(2, 3), 2.0 ** np.asarray(ours.exponents, np.float64))
