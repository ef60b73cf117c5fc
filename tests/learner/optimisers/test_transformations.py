"""Test which optax transformation each tensor has, and the learning rate of each step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.config import MeshConfig, OptimiserConfig
from learner.optimisers.transformations import MUON_RMS, schedule_of
from learner.training.mesh import make_mesh
from learner.training.optimiser import updates
from rollcast.policy.params import Params

MESH = make_mesh(MeshConfig())
RATE = 0.01
KERNEL = "layers.0.feed_forward.up.kernel"
ADAPTER = "layers.0.feed_forward.up.lora_a"


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, [1.0] * 6),
        ({"warmup_steps": 3}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ({"schedule": "linear", "decay_steps": 4, "end_share": 0.2}, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ({"schedule": "linear", "warmup_steps": 1, "decay_steps": 5}, [0.5, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ({"schedule": "cosine", "decay_steps": 4, "end_share": 0.0}, [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0]),
    ],
)
def test_learning_rates_rise_and_fall_as_configured(values: dict[str, Any], rates: list[float]) -> None:
    schedule = schedule_of(OptimiserConfig.model_validate(values), 2.0)
    found = [float(schedule(jnp.int32(count))) for count in range(6)]
    assert found == pytest.approx([2.0 * rate for rate in rates], abs=1e-6)


def test_all_steps_on_a_batch_have_the_same_learning_rate() -> None:
    config = OptimiserConfig(schedule="linear", decay_steps=2, end_share=0.0)
    schedule = schedule_of(config, 1.0, steps_per_batch=3)
    assert [float(schedule(jnp.int32(count))) for count in range(8)] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    "values", [{"schedule": "cosine"}, {"schedule": "linear", "warmup_steps": 9, "decay_steps": 9}]
)
def test_a_schedule_without_an_end_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set decay_steps above warmup_steps"):
        OptimiserConfig.model_validate(values)


def after(values: dict[str, Any], params: Params, gradients: Params, steps: int = 1) -> Params:
    made = updates(OptimiserConfig.model_validate({"max_grad_norm": 1e6} | values), RATE, MESH)
    params = {name: jnp.asarray(leaf) for name, leaf in params.items()}
    state = made.init(params)
    for _ in range(steps):
        params, state, _ = made.apply(dict(gradients), state, params, jnp.bool_(True))
    return {name: np.asarray(leaf) for name, leaf in params.items()}


def test_steps_have_the_size_that_the_schedule_says() -> None:
    config = OptimiserConfig(max_grad_norm=1e6, schedule="cosine", warmup_steps=2, decay_steps=6)
    schedule = schedule_of(config, RATE)
    made = updates(config, schedule, MESH)
    params: Params = {KERNEL: jnp.zeros((2, 2))}
    state = made.init(params)
    for _ in range(8):
        before, rate = np.asarray(params[KERNEL]), float(schedule(state.count))
        params, state, _ = made.apply({KERNEL: jnp.ones((2, 2))}, state, params, jnp.bool_(True))
        np.testing.assert_allclose(before - np.asarray(params[KERNEL]), rate, rtol=1e-4)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_only_kernels_decay(name: str) -> None:
    shapes = {
        "embedding": (8, 4),
        "head.kernel": (4, 8),
        KERNEL: (4, 8),
        ADAPTER: (4, 2),
        "layers.0.attention.query.bias": (8,),
        "layers.0.attention_norm.scale": (4,),
        "final_norm.scale": (4,),
    }
    found = after(
        {"name": name, "weight_decay": 0.5},
        {tensor: np.ones(shape, np.float32) for tensor, shape in shapes.items()},
        {tensor: jnp.zeros(shape) for tensor, shape in shapes.items()},
    )
    for tensor, leaf in found.items():
        np.testing.assert_allclose(leaf, 1.0 - 0.5 * RATE * tensor.endswith((".kernel", ".lora_a")), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape"), [("kernel", (32, 64)), ("kernel", (64, 32)), ("kernel", (3, 32, 64)), ("lora_a", (32, 64))]
)
def test_muon_turns_a_gradient_into_an_orthogonal_matrix_of_adamws_size(name: str, shape: tuple[int, ...]) -> None:
    tensor = f"layers.0.feed_forward.up.{name}"
    gradient = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    change = after({"name": "muon"}, {tensor: np.zeros(shape, np.float32)}, {tensor: jnp.asarray(gradient)})[tensor]
    assert np.sqrt(np.mean(np.square(change))) == pytest.approx(MUON_RMS * RATE, rel=0.2)
    # Five turns of Muon's iteration bring singular values near 1, to 0.7 to 1.2 (Jordan et al. 2024).
    singular = np.linalg.svd(change, compute_uv=False) / (MUON_RMS * RATE * np.sqrt(64.0))
    assert 0.6 < singular.min() <= singular.max() < 1.3
    assert np.all(np.sum(change * gradient, axis=(-2, -1)) < 0.0)


def test_the_matrices_of_experts_are_orthogonalised_apart() -> None:
    gradient = np.random.default_rng(0).normal(size=(3, 16, 32)).astype(np.float32)
    zeros = np.zeros_like(gradient)
    together = after({"name": "muon"}, {KERNEL: zeros}, {KERNEL: jnp.asarray(gradient)}, 3)[KERNEL]
    for index in range(3):
        alone = after({"name": "muon"}, {KERNEL: zeros[index]}, {KERNEL: jnp.asarray(gradient[index])}, 3)[KERNEL]
        np.testing.assert_allclose(together[index], alone, atol=1e-6)


def test_beside_muon_all_other_tensors_keep_adamw() -> None:
    shapes = {"embedding": (8, 4), "head.kernel": (4, 8), "final_norm.scale": (4,), "value.kernel": (4, 1)}
    random = np.random.default_rng(0)
    params = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    gradients: Params = {name: jnp.asarray(leaf) for name, leaf in params.items()}
    found, expected = (after({"name": name, "weight_decay": 0.1}, params, gradients, 3) for name in ("muon", "adamw"))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
