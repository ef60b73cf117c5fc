"""Test the grouped products of NVIDIA GPUs, interpreted, against XLA's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.kernels.grouped import multiply, multiply_rows

BY_ROWS = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


# Tiles of 16 rows, of which groups fill none, one and several; and fewer rows than a tile has at least.
@pytest.mark.parametrize(
    ("sizes", "inner", "columns"), [((0, 40, 1, 9), 70, 130), pytest.param((3, 0, 4), 20, 30, marks=pytest.mark.slow)]
)
def test_products_are_those_of_xla(sizes: tuple[int, ...], inner: int, columns: int) -> None:
    random, count = np.random.default_rng(0), jnp.array(sizes, jnp.int32)
    x, dy = (random.normal(0, 1, (sum(sizes), size)).astype(np.float32) for size in (inner, columns))
    matrices = random.normal(0, 1, (len(sizes), inner, columns)).astype(np.float32)
    exact = jax.lax.Precision.HIGHEST
    found = multiply(x, matrices, count, jnp.float32, interpret=True)
    np.testing.assert_allclose(found, jax.lax.ragged_dot(x, matrices, count, precision=exact), atol=1e-4)
    back = multiply(dy, matrices, count, jnp.float32, transposed=True, interpret=True)
    turned = matrices.swapaxes(1, 2)
    np.testing.assert_allclose(back, jax.lax.ragged_dot(dy, turned, count, precision=exact), atol=1e-4)
    rows = multiply_rows(x, dy, count, interpret=True)
    np.testing.assert_allclose(rows, jax.lax.ragged_dot_general(x, dy, count, BY_ROWS, precision=exact), atol=1e-4)
