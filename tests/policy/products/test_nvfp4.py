from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.policy.products.linear import nvfp4_matmul
from rollcast.policy.products.nvfp4 import Packed, pack, unpack

Array = np.ndarray[Any, Any]

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)  # by code
ROWS, COLUMNS = 48, 3

jit_pack, jit_unpack = jax.jit(pack), jax.jit(unpack)


def reference(matrix: Array, tensor_scale: np.float32) -> tuple[Array, Array]:
    """Return codes [rows, columns] and block scales, block by block and by the library's own casts."""
    codes = np.zeros(matrix.shape, np.uint8)
    scales = np.zeros((matrix.shape[0] // 16, matrix.shape[1]), ml_dtypes.float8_e4m3fn)
    for block, column in np.ndindex(scales.shape):
        rows = slice(16 * block, 16 * (block + 1))
        own = matrix[rows, column]
        scales[block, column] = np.abs(own).max() / (np.float32(6) * tensor_scale)
        step = scales[block, column].astype(np.float32) * tensor_scale
        if step > 0:
            numbers = np.clip(own / step, -6, 6).astype(ml_dtypes.float4_e2m1fn)
            codes[rows, column] = numbers.view(np.uint8)
    return codes, scales


def codes_of(packed: Packed) -> Array:
    """Return codes [rows, columns]: an even row's in the low four bits, the next row's in the high ones."""
    found = np.zeros((2 * packed.codes.shape[0], packed.codes.shape[1]), np.uint8)
    found[0::2], found[1::2] = np.asarray(packed.codes) % 16, np.asarray(packed.codes) // 16
    return found


def random_matrix(seed: int, spread: float = 2.0) -> Array:
    random = np.random.default_rng(seed)
    sizes = 10.0 ** random.uniform(-spread, spread, (ROWS // 16, 1, COLUMNS))
    matrix: Array = (random.standard_normal((ROWS // 16, 16, COLUMNS)) * sizes).reshape(ROWS, COLUMNS)
    return matrix.astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_codes_and_scales_are_those_of_the_definition(seed: int) -> None:
    matrix = random_matrix(seed)
    matrix[16:32, 1] = 0.0
    found = jit_pack(matrix)
    tensor_scale = np.asarray(found.tensor_scale)[0]
    assert tensor_scale == pytest.approx(np.abs(matrix).max() / 6 / 448, rel=1e-6)
    codes, scales = reference(matrix, tensor_scale)
    assert (found.codes.dtype, found.scales.dtype, found.tensor_scale.dtype) == ("uint8", "float8_e4m3fn", "float32")
    assert [leaf.nbytes for leaf in found] == [ROWS * COLUMNS // 2, ROWS * COLUMNS // 16, 4]
    np.testing.assert_array_equal(np.asarray(found.scales).view(np.uint8), scales.view(np.uint8))
    np.testing.assert_array_equal(VALUES[codes_of(found)], VALUES[codes])
    wide = VALUES[codes] * np.repeat(scales.astype(np.float32), 16, axis=0) * tensor_scale
    np.testing.assert_array_equal(jit_unpack(found), wide)


def test_each_code_has_its_value_and_ties_go_to_the_even_one() -> None:
    # With 6 * 448 in another block the tensor's scale is 1, and so is that of a block with a 6.
    between = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    numbers = np.zeros((ROWS, COLUMNS), np.float32)
    numbers[:16, 0] = VALUES
    numbers[:16, 1] = [*between, *(-number for number in between), 6.0, 0.0]
    numbers[:16, 2] = np.nextafter(numbers[:16, 1], 10.0, dtype=np.float32)
    numbers[14, 2], numbers[16, 0] = 6.0, 6 * 448
    found = jit_pack(numbers)
    np.testing.assert_array_equal(codes_of(found)[:16, 0] % 8, [*range(8), *range(8)])
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    values = jit_unpack(found)
    np.testing.assert_array_equal(values[:16, 1], [*even, *(-number for number in even), 6.0, 0.0])
    np.testing.assert_array_equal(values[:7, 2], [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    np.testing.assert_array_equal(values[:16, 0], VALUES)
    every = jnp.asarray(np.arange(256, dtype=np.uint8).reshape(128, 2))
    ones = Packed(every, jnp.ones((16, 2), jnp.float8_e4m3fn), jnp.ones(1, jnp.float32))
    np.testing.assert_array_equal(jax.jit(unpack)(ones), VALUES[codes_of(ones)])


def test_zeros_and_numbers_that_no_scale_can_hold_are_zeros() -> None:
    assert not np.any(jit_unpack(jit_pack(np.zeros((ROWS, COLUMNS), np.float32))))
    assert not np.any(jit_unpack(jit_pack(np.full((ROWS, COLUMNS), 1e-38, np.float32))))
    matrix = np.full((ROWS, COLUMNS), 1e-9, np.float32)
    matrix[0] = 1e3
    found = np.asarray(jit_unpack(jit_pack(matrix)))
    np.testing.assert_allclose(found[0], 1e3, rtol=1e-6)
    assert not np.any(found[1:])


def test_the_largest_floats_stay_finite_and_what_is_not_finite_spoils_its_block_alone() -> None:
    largest = float(np.finfo(np.float32).max)
    np.testing.assert_allclose(jit_unpack(jit_pack(np.full((ROWS, COLUMNS), largest, np.float32))), largest, rtol=1e-6)
    matrix = random_matrix(0)
    expected = jit_unpack(jit_pack(matrix))
    matrix[40, 0] = np.inf
    expected = np.asarray(expected).copy()
    found = np.asarray(jit_unpack(jit_pack(matrix)))
    assert np.isnan(found[32:, 0]).all()
    assert np.isfinite(found[:, 1:]).all()
    assert np.isfinite(found[:32]).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0.0, 6.0))
def test_numbers_are_within_half_a_step_of_their_block(seed: int, spread: float) -> None:
    matrix = random_matrix(seed, spread)
    packed = jit_pack(matrix)
    steps = np.repeat(np.asarray(packed.scales, np.float32), 16, axis=0) * float(packed.tensor_scale[0])
    largest = np.repeat(np.abs(matrix).reshape(-1, 16, COLUMNS).max(1), 16, axis=0)
    # The widest gap is from 4 to 6, and a scale is off by 1/16 at most, or by 2^-10 of the tensor's where it is small.
    bound = np.maximum(steps, largest / 16 + 6 * 2.0**-10 * float(packed.tensor_scale[0]))
    assert np.all(np.abs(np.asarray(jit_unpack(packed)) - matrix) <= bound * 1.0001)


def test_several_matrices_are_packed_one_by_one() -> None:
    both = np.stack([random_matrix(1), random_matrix(2)])
    found = jit_pack(both)
    for index, matrix in enumerate(both):
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda leaf: leaf[index], found), jit_pack(matrix))  # noqa: B023
    np.testing.assert_array_equal(jit_unpack(found)[1], jit_unpack(jit_pack(both[1])))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_are_those_of_the_numbers_in_the_carrier_s_dtype(dtype: Any) -> None:
    random = np.random.default_rng(3)
    packed = jit_pack(random_matrix(3))
    x, dy = (jnp.asarray(random.standard_normal((2, 4, size)), dtype) for size in (ROWS, COLUMNS))

    @jax.jit
    def run() -> Any:
        product, pull = jax.vjp(lambda x: nvfp4_matmul(x, packed), x)
        return product, *pull(dy)

    product, dx = run()
    kernel = np.asarray(jit_unpack(packed)).astype(dtype).astype(np.float64)
    wide_x, wide_dy = (np.asarray(one, np.float64) for one in (x, dy))
    assert product.dtype == dx.dtype == dtype
    close = {"rtol": 2e-2 if dtype == jnp.bfloat16 else 1e-5}
    for found, expected in ((product, wide_x @ kernel), (dx, wide_dy @ kernel.T)):
        np.testing.assert_allclose(
            np.asarray(found, np.float64), expected, atol=close["rtol"] * np.abs(expected).max() / 4, **close
        )


def test_the_backward_pass_keeps_the_codes_and_not_their_numbers() -> None:
    packed, x = jit_pack(random_matrix(3)), jnp.zeros((2, ROWS))
    kept = jax.eval_shape(lambda x: jax.vjp(lambda x: nvfp4_matmul(x, packed), x)[1], x)
    assert {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(kept)} == {(leaf.shape, leaf.dtype) for leaf in packed}
