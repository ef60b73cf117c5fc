from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from rollcast.policy.products import fp8_unit
from rollcast.policy.products.linear import fp8_matmul
from rollcast.policy.products.quantise import (
    ALONG_COLUMNS,
    ALONG_ROWS,
    WEIGHT_BLOCK,
    Block,
    Quantised,
    dequantise,
    quantise,
)

SHAPE = (130, 257, 140)  # rows, inner, columns: two or three tiles each, ragged


def operands(right_block: Block) -> tuple[Quantised, Quantised]:
    rows, inner, columns = SHAPE
    random = np.random.default_rng(5)
    left = random.standard_normal((rows, inner)) * np.exp(random.uniform(-5, 5, (rows, 1)))
    right = random.standard_normal((inner, columns)) * np.exp(random.uniform(-5, 5, (1, columns)))
    run = jax.jit(quantise, static_argnums=1)
    return run(left.astype(np.float32), ALONG_COLUMNS), run(right.astype(np.float32), right_block)


@pytest.mark.parametrize("right_block", [WEIGHT_BLOCK, ALONG_ROWS])
def test_the_kernel_scales_every_block_of_the_contraction(right_block: Block) -> None:
    left, right = operands(right_block)
    product = jax.jit(functools.partial(fp8_unit.multiply, interpret=True))(left, right)
    values = jax.jit(dequantise, static_argnums=1)
    exact = np.asarray(values(left, ALONG_COLUMNS), np.float64) @ np.asarray(values(right, right_block))
    np.testing.assert_allclose(product, exact, rtol=1e-5, atol=1e-6 * np.abs(exact).max())


def test_the_kernel_is_compiled_for_nvidias_gpus_with_operands_of_8_bits() -> None:
    lowered = jax.jit(fp8_unit.multiply).trace(*operands(WEIGHT_BLOCK)).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in lowered.splitlines() if "triton" in line]
    assert len(calls) == 1
    assert calls[0].count("xf8E4M3FN>") == 2


def test_a_linear_layer_uses_an_available_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fp8_unit.is_available()  # on a CPU
    random = np.random.default_rng(6)
    x, master, dy = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in [(3, 8), (8, 6), (3, 6)])

    def run() -> tuple[Any, Any]:
        product, pull = jax.vjp(fp8_matmul, x, master)
        return product, pull(dy)

    emulated = jax.jit(lambda: run())()
    monkeypatch.setattr(fp8_unit, "is_available", lambda: True)
    monkeypatch.setattr(fp8_unit, "multiply", functools.partial(fp8_unit.multiply, interpret=True))
    taken = jax.jit(lambda: run())()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), taken, emulated)


@pytest.mark.parametrize(
    ("sizes", "tokens", "taken"),
    [
        ((2, 4, 1), 8 * 128, True),
        ((2, 4, 1), 8 * 128 + 8, False),  # a device would have a part of a group
        ((2, 2, 2), 8 * 128, False),  # kernels are divided too
        ((1, 1, 1), 7, True),
    ],
)
def test_devices_take_whole_groups_of_tokens(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int], tokens: int, taken: bool
) -> None:
    mesh = AbstractMesh(sizes, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.sharding.use_abstract_mesh(mesh):
        assert fp8_unit.takes(tokens) == taken
    assert fp8_unit.takes(tokens)  # on one device
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    assert not fp8_unit.takes(tokens)  # without a mesh, operands may be sharded over all of them
    assert "there are 8 devices" in fp8_unit.mesh_refusal(None)


class Gpu:
    platform = "gpu"

    def __init__(self, compute_capability: str) -> None:
        self.compute_capability = compute_capability


@pytest.mark.parametrize(
    ("capability", "difference", "reason"),
    [
        ("9.0", 1e-5, ""),
        ("8.6", 1e-5, "compute capability 8.9, and this GPU has 8.6"),
        ("9.0", 0.2, "products are 0.2 off"),
        ("9.0", float("nan"), "off"),
    ],
)
def test_a_unit_that_is_not_used_says_why(
    monkeypatch: pytest.MonkeyPatch, capability: str, difference: float, reason: str
) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu(capability)])
    monkeypatch.setattr(fp8_unit, "_difference", lambda: difference)
    fp8_unit.refusal.cache_clear()
    found = fp8_unit.refusal()
    fp8_unit.refusal.cache_clear()
    assert reason in found
    assert bool(found) == bool(reason)
