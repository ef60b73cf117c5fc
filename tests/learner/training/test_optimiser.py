"""Test the optimiser on a mesh."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from learner.config import MeshConfig, OptimiserConfig
from learner.optimisers.moments import stored
from learner.training import optimiser
from learner.training.mesh import make_mesh
from learner.training.optimiser import Updates, updates
from rollcast.policy.config import StateDtype
from rollcast.policy.params import Params
from rollcast.policy.stacking import Layers, stacked
from tests.compiling import printed_on_eight_devices

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
        params, state, (_, norm, _) = adam.apply(gradients_of(params), state, params, jnp.bool_(True))
    return {name: np.asarray(leaf) for name, leaf in params.items()}, state, float(norm)


def adam_of_the_paper(config: OptimiserConfig, learning_rate: float, steps: int) -> tuple[Params, float]:
    """Return the parameters and the last norm of Kingma and Ba 2015, algorithm 1, on clipped gradients, in float64."""
    params, norm = {name: np.asarray(leaf, np.float64) for name, leaf in start().items()}, 0.0
    first, second = ({name: np.zeros_like(leaf) for name, leaf in params.items()} for _ in range(2))
    for step in range(1, steps + 1):
        gradients = {name: np.asarray(leaf, np.float64) for name, leaf in gradients_of(params).items()}
        norm = float(np.sqrt(sum(np.square(leaf).sum() for leaf in gradients.values())))
        for name, whole in gradients.items():
            gradient = whole * min(1.0, config.max_grad_norm / norm)
            first[name] = config.b1 * first[name] + (1.0 - config.b1) * gradient
            second[name] = config.b2 * second[name] + (1.0 - config.b2) * gradient**2
            root = np.sqrt(second[name] / (1.0 - config.b2**step)) + config.epsilon
            params[name] = params[name] - learning_rate * first[name] / (1.0 - config.b1**step) / root
    return params, norm


def test_without_decay_and_at_a_constant_rate_it_is_the_papers_adam() -> None:
    config = OptimiserConfig(max_grad_norm=0.5)
    found, state, norm = trained(updates(config, 0.1, MESH), 5)
    expected, expected_norm = adam_of_the_paper(config, 0.1, 5)
    for name, leaf in expected.items():
        np.testing.assert_allclose(found[name], leaf, atol=1e-6)
    assert norm == pytest.approx(expected_norm, rel=1e-5)
    assert int(state.count) == 5


@pytest.mark.parametrize(
    "whole",
    [
        optax.contrib.muon(optax.linear_schedule(0.02, 0.002, 5), adam_learning_rate=0.01, weight_decay=0.1),
        optax.adamw(optax.cosine_decay_schedule(0.02, 5), weight_decay=0.1),
    ],
)
def test_tensor_by_tensor_the_steps_are_those_of_optax_on_the_whole(whole: optax.GradientTransformation) -> None:
    transformation = stored(whole, "float32")
    found, _, _ = trained(Updates(lambda _name: transformation, MESH), 5)
    params = start()
    state = whole.init(params)
    for _ in range(5):
        changes, state = whole.update(gradients_of(params), state, params)
        params = optax.apply_updates(params, changes)
    for name, leaf in params.items():
        np.testing.assert_allclose(found[name], leaf, atol=1e-6)


SMALL = [
    ("adamw", "bfloat16", {"bfloat16": 1024}),
    ("adamw", "int8", {"int8": 512, "uint8": 512}),
    ("muon", "bfloat16", {"bfloat16": 1024}),
    ("muon", "int8", {"int8": 512}),
]


@functools.cache
def trained_in_float32(name: str, b2: float) -> Params:
    config = OptimiserConfig.model_validate({"name": name, "max_grad_norm": 100.0, "b2": b2})
    return trained(updates(config, 0.02, MESH), 150)[0]


@pytest.mark.parametrize("b2", [0.95, 0.999])
@pytest.mark.parametrize(("name", "state_dtype", "sizes"), SMALL)
def test_small_states_reach_the_result_of_float32(
    name: str, state_dtype: str, sizes: dict[str, int], b2: float
) -> None:
    values: dict[str, Any] = {"name": name, "max_grad_norm": 100.0, "b2": b2}
    small, state, _ = trained(updates(OptimiserConfig(state_dtype=state_dtype, **values), 0.02, MESH), 150)
    large = trained_in_float32(name, b2)
    error = np.abs(small[KERNEL] - TARGET)
    assert error.mean() < np.abs(large[KERNEL] - TARGET).mean() + 0.02
    assert error.max() < np.abs(large[KERNEL] - TARGET).max() + 0.1
    assert {str(leaf.dtype): leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.size == TARGET.size} == sizes


def test_small_states_give_reproducible_bits() -> None:
    adam = updates(OptimiserConfig(state_dtype="int8"), 0.02, MESH)
    first, _, _ = trained(adam, 5)
    second, _, _ = trained(adam, 5)
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("name", "state_dtype"), [("adamw", "float32"), ("adamw", "int8"), ("muon", "float32")])
def test_moments_on_the_host_make_the_same_steps(name: str, state_dtype: str) -> None:
    config = OptimiserConfig.model_validate({"name": name, "state_dtype": state_dtype, "max_grad_norm": 0.5})
    here, _, norm = trained(updates(config, 0.1, MESH), 3)
    config = config.model_copy(update={"offload": True})
    there, state, host_norm = trained(updates(config, 0.1, MESH), 3)
    for name, expected in here.items():
        np.testing.assert_allclose(there[name], expected, atol=1e-6)
    assert host_norm == pytest.approx(norm)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.moments)} == {"pinned_host"}


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16", "int8"])
def test_a_tensor_alone_makes_the_same_steps(state_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optimisers = [updates(OptimiserConfig(state_dtype=state_dtype), 0.1, MESH) for _ in range(2)]
    together, _, _ = trained(optimisers[0], 3)
    monkeypatch.setattr(optimiser, "ALONE_ELEMENTS", 1)
    alone, _, _ = trained(optimisers[1], 3)
    for name, expected in together.items():
        np.testing.assert_array_equal(alone[name], expected)


@functools.cache
def optimiser_of(form: str) -> Updates:
    """Return one optimiser for all tests of a form, so that it compiles once."""
    return updates(OptimiserConfig.model_validate({"state_dtype": form}), 0.1, MESH)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("value", "sound"), [(np.nan, True), (np.inf, True), (1e30, True), (1.0, False)])
def test_a_step_that_is_not_finite_changes_no_bit(form: str, value: float, sound: bool) -> None:
    adam, params = optimiser_of(form), start()
    params, state, _ = adam.apply(gradients_of(params), adam.init(params), params, jnp.bool_(True))
    before = jax.tree.map(np.array, (params, state))
    gradients = gradients_of(params)
    gradients[KERNEL] = gradients[KERNEL].at[3, 5].set(value)  # the square of 1e30 overflows in float32
    *after, step = adam.apply(gradients, state, params, jnp.bool_(sound))
    assert not step.taken
    jax.tree.map(np.testing.assert_array_equal, before, tuple(after))


@pytest.mark.parametrize(("name", "state_dtype"), [("adamw", "float32"), ("adamw", "int8"), ("muon", "float32")])
def test_a_stacked_tensor_is_updated_as_its_layers_are(name: str, state_dtype: str) -> None:
    config = OptimiserConfig.model_validate({"name": name, "state_dtype": state_dtype})
    random = np.random.default_rng(0)
    shapes = {"feed_forward.up.kernel": (64, 32), "attention_norm.scale": (32,)}
    alone = {
        f"layers.{layer}.{name}": jnp.asarray(random.standard_normal(shape, np.float32))
        for layer in range(3)
        for name, shape in shapes.items()
    }
    results = []
    for params in (stacked(alone), alone):
        chosen = updates(config, 0.1, MESH)
        state = chosen.init(params)
        for _ in range(3):
            gradients = {name: leaf - 1.0 for name, leaf in params.items()}
            params, state, _ = chosen.apply(gradients, state, params, jnp.bool_(True))
        results.append(params)
    by_layer, expected = Layers(results[0]), results[1]
    for name, leaf in expected.items():
        # Codes of 8 bits are rounded by chance, and the chances of stacked layers are others; vectors have no codes.
        near = 0.02 if state_dtype == "int8" and leaf.ndim > 1 else 1e-5
        np.testing.assert_allclose(by_layer[name], leaf, atol=near, err_msg=name)


def test_gradients_are_used_up() -> None:
    params = start()
    gradients = gradients_of(params)
    adam = updates(OptimiserConfig(), 0.1, MESH)
    adam.apply(gradients, adam.init(params), params, jnp.bool_(True))
    assert not gradients


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16", "int8"])
def test_a_step_takes_the_memory_of_one_tensor_whatever_their_number(state_dtype: StateDtype) -> None:
    """A CPU needs up to 3.3 copies of the tensor; the compiler for H100s makes one kernel that needs none."""
    side, layers = 512, 3
    square = jax.ShapeDtypeStruct((side, side), jnp.float32)
    params: Params = {f"layers.{layer}.attention.query.kernel": square for layer in range(layers)}
    adamw = updates(OptimiserConfig(state_dtype=state_dtype, weight_decay=0.1), 0.1, MESH)
    state = adamw.abstract_state(params)
    _, *lowered = adamw.lowered(params)
    assert len(lowered) == 1, "the layers share one program"
    memory = lowered[0].compile().memory_analysis()
    assert memory.temp_size_in_bytes < 3.5 * 4 * side**2
    moments = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.moments)) // layers
    assert memory.alias_size_in_bytes == 4 * side**2 + moments


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_abstract_state_is_that_of_a_fresh_one(name: str) -> None:
    made = updates(OptimiserConfig.model_validate({"name": name, "state_dtype": "int8"}), 0.1, MESH)
    params = start() | {"layers.0.feed_forward.up.kernel": jnp.zeros((512, 512))}
    shapes = {leaf: jax.ShapeDtypeStruct(value.shape, value.dtype) for leaf, value in params.items()}

    def described(leaf: Any) -> tuple[Any, ...]:
        return leaf.shape, leaf.dtype

    fresh, abstract = (jax.tree.map(described, state) for state in (made.init(params), made.abstract_state(shapes)))
    assert fresh == abstract


def test_steps_on_a_mesh_are_those_on_one_device() -> None:
    """This runs on 8 virtual devices in a process of its own, because their number is fixed when jax starts."""
    differences = printed_on_eight_devices("tests.learner.training.optimiser_on_mesh")
    assert len(differences) == 2
    assert max(differences.values()) < 2e-6, differences
