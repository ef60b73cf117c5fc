"""Test parameters and their shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.attention import segment_attend
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params, abstract_params, abstract_snapshot, bind, initial_params
from rollcast.policy.shapes import parameter_count, parameter_shapes
from tests.policy.test_model import forward
from tests.policy.tiny import TINY, reference_logits

INPUTS = (jnp.array([[1, 2, 3]], jnp.int32), jnp.array([[0, 1, 2]], jnp.int32), jnp.ones((1, 3), jnp.int32))


def test_names_are_dotted_paths() -> None:
    names = set(initial_params(TINY, 0))
    assert {"embedding", "layers.0.attention.query.kernel", "layers.1.feed_forward.down.kernel"} <= names
    assert "head.kernel" not in names


def test_a_bound_model_computes_with_the_given_parameters() -> None:
    params = initial_params(TINY, 3)
    bound = forward(TINY, params, *INPUTS)
    np.testing.assert_allclose(bound[0], reference_logits(TINY, params, [1, 2, 3]), atol=3e-6)


def test_kernels_have_unit_gain_and_scales_are_one() -> None:
    wide = TINY.model_copy(update={"width": 256, "feed_forward_width": 1024})
    params = initial_params(wide, 0)
    assert np.std(params["layers.0.feed_forward.down.kernel"]) == pytest.approx(1024**-0.5, rel=0.02)
    assert np.std(params["embedding"]) == pytest.approx(0.02, rel=0.05)
    assert np.all(np.asarray(params["layers.0.attention.key_norm.scale"]) == 1.0)


def test_the_same_seed_gives_the_same_weights() -> None:
    first, again, other = (initial_params(TINY, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["embedding"], other["embedding"])


def test_the_default_model_is_small() -> None:
    config = ModelConfig(vocabulary_size=64)
    assert sum(value.size for value in initial_params(config, 0).values()) < 3_000_000


@pytest.mark.parametrize("changed", [{"vocabulary_size": 0}, {"key_value_heads": 3}, {"head_size": 7}])
def test_impossible_architectures_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"vocabulary_size|query_heads"):
        initial_params(TINY.model_copy(update=changed), 0)


def test_a_missing_tensor_is_named() -> None:
    params = initial_params(TINY, 0)
    del params["final_norm.scale"]
    with pytest.raises(KeyError, match=r"final_norm\.scale"):
        bind(TINY, params)


def test_abstract_parameters_have_the_shapes_of_real_ones() -> None:
    shapes = {name: leaf.shape for name, leaf in abstract_params(TINY).items()}
    assert shapes == {name: value.shape for name, value in initial_params(TINY, 0).items()}


@pytest.mark.parametrize(
    ("precision", "learner", "rollout"),
    [
        ("float32", "carrier", "carrier"),
        ("bfloat16", "carrier", "carrier"),
        ("fp8", "fp8-master", "fp8-codes"),
        ("fp8-naive", "carrier", "fp8-codes"),
    ],
)
def test_the_kernels_of_the_blocks_follow_the_precision(precision: str, learner: str, rollout: str) -> None:
    config = TINY.model_copy(update={"precision": precision, "tied_embeddings": False})
    for tensors, flow in ((abstract_params(config), learner), (abstract_snapshot(config), rollout)):
        model = bind(config, tensors)
        assert model.head is not None
        assert model.head.flow == "carrier"
        for block in model.layers:
            attention, feed_forward = block.attention, block.feed_forward
            kernels = [attention.query, attention.key, attention.value, attention.output]
            kernels += [feed_forward.gate, feed_forward.up, feed_forward.down]
            assert {kernel.flow for kernel in kernels} == {flow}


@pytest.mark.parametrize("carrier", ["float32", "bfloat16"])
def test_masters_get_float32_gradients_through_e4m3(carrier: str) -> None:
    config = TINY.model_copy(update={"precision": "fp8", "carrier": carrier})

    def loss(masters: Params) -> jax.Array:
        model = bind(config, masters)
        hidden = model(*INPUTS[:2], segment_attend(INPUTS[2])).states
        assert hidden.dtype == carrier
        return jnp.sum(model.logits(hidden))

    masters = abstract_params(config)
    assert jax.eval_shape(jax.grad(loss), masters) == masters


@pytest.mark.parametrize(
    ("tied", "qk_norm", "bias"), [(True, True, False), (False, False, True), (False, False, False)]
)
def test_shapes_are_those_of_the_model(tied: bool, qk_norm: bool, bias: bool) -> None:
    config = TINY.model_copy(update={"tied_embeddings": tied, "qk_norm": qk_norm, "attention_bias": bias})
    expected = {name: leaf.shape for name, leaf in sorted(abstract_params(config).items())}
    assert list(parameter_shapes(config).items()) == list(expected.items())
    assert parameter_count(config) == sum(leaf.size for leaf in abstract_params(config).values())
