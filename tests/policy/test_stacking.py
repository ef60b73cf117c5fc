"""Test stacked parameters, and the model that scans over them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.attention import segment_attend
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params, bind, initial_params
from rollcast.policy.snapshot import freeze, thaw
from rollcast.policy.stacking import Layers, is_stacked, stacked
from tests.policy.tiny import TINY

INPUTS = (jnp.array([[1, 2, 3]], jnp.int32), jnp.array([[0, 1, 2]], jnp.int32), jnp.ones((1, 3), jnp.int32))


def test_layers_show_what_was_stacked() -> None:
    params = initial_params(TINY, 0)
    stacks = stacked(params)
    assert stacks["layers.attention.query.kernel"].shape == (TINY.layers, TINY.width, 32)
    assert stacks["embedding"] is params["embedding"]
    assert {name for name in stacks if not is_stacked(name)} == {"embedding", "final_norm.scale"}
    shown = Layers(stacks)
    assert list(shown) == sorted(params)
    assert len(shown) == len(params)
    for name, value in params.items():
        np.testing.assert_array_equal(shown[name], value, err_msg=name)


def test_stacked_tensors_stay_as_they_are() -> None:
    stacks = stacked(initial_params(TINY, 0))
    again = stacked(stacks)
    assert list(again) == list(stacks)
    assert all(again[name] is stacks[name] for name in stacks)


def test_a_layer_without_a_tensor_is_refused() -> None:
    params = initial_params(TINY, 0)
    del params["layers.0.attention.query.kernel"]
    with pytest.raises(KeyError):
        stacked(params)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "fp8"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_scan_over_layers_computes_what_single_layers_do(precision: str, frozen: bool) -> None:
    config = ModelConfig.model_validate(TINY.model_dump() | {"precision": precision})

    def hidden(params: Params) -> jax.Array:
        result: jax.Array = bind(config, params)(*INPUTS[:2], segment_attend(INPUTS[2])).states
        return result.astype(jnp.float32)

    params = initial_params(config, 0)
    if frozen:
        snapshot = freeze(config, params)
        params = thaw(config, snapshot.tensors, snapshot.state_bytes)
    alone, scanned = jax.jit(hidden)(params), jax.jit(hidden)(stacked(params))
    np.testing.assert_allclose(scanned, alone, atol=3e-2 if precision == "bfloat16" else 1e-5)
