"""Test the grouped products of NVIDIA GPUs, interpreted, against float64 products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.kernels import grouped


def test_products_are_those_of_each_groups_rows() -> None:
    """Tiles have 16 rows: groups fill none, one and several."""
    assert grouped._difference(interpret=True) < 1e-5


@pytest.mark.slow
def test_fewer_rows_than_a_tile_are_filled_up() -> None:
    random, sizes = np.random.default_rng(0), jnp.array((3, 0, 4), jnp.int32)
    x, matrices = random.normal(size=(7, 20)), random.normal(size=(3, 20, 30))
    x, matrices = x.astype(np.float32), matrices.astype(np.float32)
    found = grouped.multiply(x, matrices, sizes, jnp.float32, interpret=True)
    exact = jax.lax.ragged_dot(x, matrices, sizes, precision=jax.lax.Precision.HIGHEST)
    np.testing.assert_allclose(found, exact, atol=1e-4)
    rows = grouped.multiply_rows(jnp.asarray(x), jnp.asarray(x), sizes, interpret=True)
    np.testing.assert_allclose(rows[0], x[:3].T @ x[:3], atol=1e-4)
    assert not np.any(rows[1])


def test_a_gpu_that_computes_them_wrongly_leaves_them_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        platform = "gpu"

    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu()])
    for difference, used in ((1e-6, True), (0.1, False), (float("nan"), False)):
        monkeypatch.setattr(grouped, "_difference", lambda value=difference: value)
        assert grouped.is_available.__wrapped__() == used


def test_they_are_lowered_to_triton_for_nvidia_gpus() -> None:
    from rollcast.policy.products.grouped import Kernel, grouped_matmul

    x, kernel = jax.ShapeDtypeStruct((64, 32), jnp.bfloat16), jax.ShapeDtypeStruct((4, 32, 16), jnp.float32)
    sizes = jax.ShapeDtypeStruct((4,), jnp.int32)

    def total(x: jax.Array, kernel: jax.Array, sizes: jax.Array) -> jax.Array:
        return jnp.sum(grouped_matmul(x, Kernel(kernel, None), sizes, "carrier").astype(jnp.float32))

    traced = jax.jit(jax.grad(total, argnums=(0, 1))).trace(x, kernel, sizes)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("grouped_product_of_rows") > 0
    assert "ragged_dot" not in text
