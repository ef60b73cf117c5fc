from __future__ import annotations

import dataclasses
from itertools import pairwise

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rollcast.policy.config import ModelConfig
from rollcast.policy.params import initial_params
from rollcast.policy.snapshot import freeze, tensor_specs, thaw
from rollcast.runtime.errors import MalformedMessage
from tests.policy.test_model import forward
from tests.policy.tiny import TINY

HALF = TINY.model_copy(update={"precision": "bfloat16"})
INPUTS = (jnp.array([[1, 2, 3]], jnp.int32), jnp.array([[0, 1, 2]], jnp.int32), jnp.ones((1, 3), jnp.int32))


@pytest.mark.parametrize("config", [TINY, HALF])
def test_specs_are_sorted_contiguous_and_known_in_advance(config: ModelConfig) -> None:
    snapshot = freeze(config, initial_params(config, 0))
    names = [spec.name for spec in snapshot.tensors]
    assert names == sorted(names)
    assert snapshot.tensors[0].offset_bytes == 0
    assert all(a.offset_bytes + a.size_bytes == b.offset_bytes for a, b in pairwise(snapshot.tensors))
    assert sum(spec.size_bytes for spec in snapshot.tensors) == len(snapshot.state_bytes)
    assert {spec.dtype for spec in snapshot.tensors} == {config.precision}
    assert snapshot.tensors == tensor_specs(config)


def test_float32_survives_bit_for_bit() -> None:
    params = initial_params(TINY, 0)
    snapshot = freeze(TINY, params)
    thawed = thaw(TINY, snapshot.tensors, snapshot.state_bytes)
    assert thawed.keys() == params.keys()
    assert all(np.array_equal(thawed[name], params[name]) for name in params)
    assert freeze(TINY, thawed) == snapshot


def test_bfloat16_is_rounded_once() -> None:
    params = initial_params(HALF, 0)
    snapshot = freeze(HALF, params)
    thawed = thaw(HALF, snapshot.tensors, memoryview(bytearray(snapshot.state_bytes)))
    for name, value in params.items():
        assert thawed[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(thawed[name], np.asarray(value).astype(ml_dtypes.bfloat16))
    assert freeze(HALF, thawed) == snapshot


@pytest.mark.parametrize("config", [TINY, HALF])
def test_masters_and_snapshot_give_the_same_logits(config: ModelConfig) -> None:
    params = initial_params(config, 0)
    snapshot = freeze(config, params)
    thawed = thaw(config, snapshot.tensors, snapshot.state_bytes)
    np.testing.assert_array_equal(forward(config, thawed, *INPUTS), forward(config, params, *INPUTS))


def test_foreign_tensors_are_refused() -> None:
    snapshot = freeze(TINY, initial_params(TINY, 0))
    renamed = (dataclasses.replace(snapshot.tensors[0], name="other"), *snapshot.tensors[1:])
    for tensors in (renamed, snapshot.tensors[1:], tensor_specs(HALF)):
        with pytest.raises(MalformedMessage, match="tensors"):
            thaw(TINY, tensors, snapshot.state_bytes)


def test_a_state_of_the_wrong_size_is_refused() -> None:
    snapshot = freeze(TINY, initial_params(TINY, 0))
    with pytest.raises(MalformedMessage, match="bytes"):
        thaw(TINY, snapshot.tensors, snapshot.state_bytes[:-1])
