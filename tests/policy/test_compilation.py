"""Test the precision of matrix products and the flags that make a GPU repeat itself."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import pytest

from rollcast.policy import compilation
from rollcast.policy.compilation import MatmulPrecision, use_matmul_precision, use_repeatable_operations

pytestmark = pytest.mark.usefixtures("restored_numerics")

ONE = jax.ShapeDtypeStruct((8, 8), jnp.float32)


@pytest.mark.parametrize(
    ("precision", "carrier", "written"),
    [
        ("highest", "float32", "HIGHEST"),
        ("high", "float32", "HIGH"),
        ("default", "float32", "DEFAULT"),
        ("highest", "bfloat16", "DEFAULT"),
    ],
)
def test_products_and_their_gradients_have_the_precision(
    precision: MatmulPrecision, carrier: str, written: str
) -> None:
    use_matmul_precision(precision, carrier)
    text = jax.jit(jax.grad(lambda a, b: jnp.sum((a @ b) ** 2), argnums=(0, 1))).lower(ONE, ONE).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 3
    assert all(f"precision = [{written}, {written}]" in line for line in products)


@pytest.mark.parametrize(("plugin", "flags"), [(True, 1), (False, 0)])
def test_only_gpus_get_the_flag_and_only_once(monkeypatch: pytest.MonkeyPatch, plugin: bool, flags: int) -> None:
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda _name: plugin or None)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    for _ in range(2):
        use_repeatable_operations()
    assert os.environ["XLA_FLAGS"].split().count("--xla_gpu_deterministic_ops=true") == flags
    assert os.environ["XLA_FLAGS"].startswith("--xla_force_host_platform_device_count=2")
