"""Test snapshots: the tensors exactly as the rollout's forward pass reads them, frozen and published."""

from __future__ import annotations

import dataclasses
import functools
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from pydantic import ValidationError

from rollcast.policy import snapshot as snapshots
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import abstract_snapshot, initial_params
from rollcast.policy.products.quantise import WEIGHT_BLOCK, quantise
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.shapes import parameter_count
from rollcast.policy.snapshot import Snapshot, freeze, frozen_bits, tensor_specs, thaw
from rollcast.policy.stacking import Layers, stacked
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.delta import DeltaDecoder, InPlace, encode_delta
from rollcast.wire.versions.tensors import TensorSpec
from tests.compiling import OPTIMISED
from tests.policy.test_model import forward
from tests.policy.tiny import TINY

HALF = TINY.model_copy(update={"precision": "bfloat16", "width": 64, "tied_embeddings": False})

EIGHTH = TINY.model_copy(update={"precision": "fp8", "layers": 1})

EIGHTH_BF16 = EIGHTH.model_copy(update={"carrier": "bfloat16"})

NAIVE = EIGHTH.model_copy(update={"precision": "fp8-naive"})

jit_quantise = jax.jit(functools.partial(quantise, block=WEIGHT_BLOCK))

INPUTS = (jnp.array([[1, 2, 3]], jnp.int32), jnp.array([[0, 1, 2]], jnp.int32), jnp.ones((1, 3), jnp.int32))


@pytest.mark.parametrize("config", [TINY, HALF, EIGHTH, EIGHTH_BF16, NAIVE])
def test_specs_are_sorted_contiguous_and_known_in_advance(config: ModelConfig) -> None:
    snapshot = freeze(config, initial_params(config, 0))
    names = [spec.name for spec in snapshot.tensors]
    assert names == sorted(names)
    assert snapshot.tensors[0].offset_bytes == 0
    assert all(a.offset_bytes + a.size_bytes == b.offset_bytes for a, b in pairwise(snapshot.tensors))
    assert sum(spec.size_bytes for spec in snapshot.tensors) == len(snapshot.state_bytes)
    assert {spec.dtype for spec in snapshot.tensors} - {"float8_e4m3fn", "int8"} == {config.carrier_dtype}
    assert snapshot.tensors == tensor_specs(config)


def test_float32_survives_bit_for_bit() -> None:
    params = initial_params(TINY, 0)
    snapshot = freeze(TINY, params)
    thawed = thaw(TINY, snapshot.tensors, snapshot.state_bytes)
    assert thawed.keys() == params.keys()
    assert all(np.array_equal(thawed[name], params[name]) for name in params)
    assert freeze(TINY, thawed) == snapshot


def test_the_table_of_tensors_is_not_made_anew_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    params, made = initial_params(TINY, 0), []

    def counted(config: ModelConfig) -> Any:
        made.append(config)
        return abstract_snapshot(config)

    freeze(TINY, params)
    monkeypatch.setattr(snapshots, "abstract_snapshot", counted)
    freeze(TINY, params)
    assert made == [TINY], "for the specs alone"


def test_bfloat16_is_rounded_once() -> None:
    params = initial_params(HALF, 0)
    snapshot = freeze(HALF, params)
    thawed = thaw(HALF, snapshot.tensors, memoryview(bytearray(snapshot.state_bytes)))
    for name, value in params.items():
        assert thawed[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(thawed[name], np.asarray(value).astype(ml_dtypes.bfloat16))
    assert freeze(HALF, thawed) == snapshot


def test_every_bfloat16_comes_from_the_nearest_float32_subnormal_numbers_and_nan_included() -> None:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (upper[:, None] | lower).view(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(frozen_bits(HALF, "embedding", jnp.asarray(values))["embedding"], expected)


def test_a_layer_is_rounded_where_it_lies_in_its_stack() -> None:
    params = initial_params(HALF, 0)
    name = "layers.1.feed_forward.up.kernel"
    layer = Layers(stacked(params)).uncut(name)
    np.testing.assert_array_equal(frozen_bits(HALF, name, layer)[name], frozen_bits(HALF, name, params[name])[name])
    memory = jax.jit(functools.partial(frozen_bits, HALF, name)).lower(layer).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < params[name].nbytes  # no copy of the layer in float32


def test_a_parameter_of_another_type_is_not_frozen() -> None:
    with pytest.raises(TypeError, match="float16 cannot be frozen as bfloat16"):
        frozen_bits(HALF, "embedding", jnp.zeros((2, 2), jnp.float16))


@pytest.mark.parametrize("config", [EIGHTH, EIGHTH_BF16])
def test_kernels_of_the_blocks_are_codes_and_exponents(config: ModelConfig) -> None:
    params = initial_params(config, 0)
    snapshot = freeze(config, params)
    thawed = thaw(config, snapshot.tensors, snapshot.state_bytes)
    for name, value in params.items():
        if name.endswith(".kernel"):
            codes, exponents = jit_quantise(value)
            np.testing.assert_array_equal(thawed[name], codes)
            np.testing.assert_array_equal(thawed[f"{name}_scale"], exponents)
        else:
            np.testing.assert_array_equal(thawed[name], np.asarray(value).astype(config.carrier_dtype))
    assert sum(name.endswith("_scale") for name in thawed) == 7 * config.layers
    assert freeze(config, thawed) == snapshot


def test_an_untied_head_is_not_quantised() -> None:
    config = EIGHTH.model_copy(update={"tied_embeddings": False})
    dtypes = {spec.name: spec.dtype for spec in freeze(config, initial_params(config, 0)).tensors}
    assert dtypes["head.kernel"] == "float32"


def test_the_naive_flow_publishes_its_rounded_bfloat16_copy() -> None:
    params = initial_params(NAIVE, 0)
    snapshot = freeze(NAIVE, params)
    half = {name: value.astype(jnp.bfloat16).astype(jnp.float32) for name, value in params.items()}
    assert snapshot == freeze(EIGHTH_BF16, half)


def test_a_delta_of_two_versions_in_e4m3_is_small_and_exact() -> None:
    config = EIGHTH.model_copy(update={"width": 128, "feed_forward_width": 256, "layers": 1})
    params = initial_params(config, 0)
    random = np.random.default_rng(1)
    stepped = {  # a step of Adam at a learning rate of 1e-6 against weights of about 0.09
        name: value + jnp.asarray(random.choice([-4e-6, 4e-6], value.shape).astype(np.float32))
        for name, value in params.items()
        if name.endswith(".kernel")
    }
    old, new = freeze(config, params), freeze(config, params | stepped)
    delta = b"".join(encode_delta(old.tensors, old.state_bytes, new.state_bytes))
    state = bytearray(old.state_bytes)
    decoder = DeltaDecoder(old.tensors, InPlace(state))
    decoder.feed(delta)
    decoder.finish()
    assert bytes(state) == new.state_bytes != old.state_bytes
    assert len(delta) < 0.01 * len(new.state_bytes)
    exponents = [spec for spec in old.tensors if spec.dtype == "int8"]
    assert all(_bytes_of(old, spec) == _bytes_of(new, spec) for spec in exponents)


def _bytes_of(snapshot: Snapshot, spec: TensorSpec) -> bytes:
    return snapshot.state_bytes[spec.offset_bytes : spec.offset_bytes + spec.size_bytes]


@pytest.mark.parametrize("config", [TINY, HALF, EIGHTH, EIGHTH_BF16])
def test_masters_and_snapshot_give_the_same_logits(config: ModelConfig) -> None:
    params = initial_params(config, 0)
    snapshot = freeze(config, params)
    thawed = thaw(config, snapshot.tensors, snapshot.state_bytes)
    optimised = jax.jit(forward, static_argnums=0, compiler_options=OPTIMISED)
    np.testing.assert_array_equal(optimised(config, thawed, *INPUTS), optimised(config, params, *INPUTS))


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


#: Parameters as the model cards give them, in millions; tied embeddings count once.
MILLIONS = {
    "qwen3-0.6b": 596,
    "qwen3-1.7b": 1721,
    "qwen3-4b": 4022,
    "qwen3-8b": 8191,
    "qwen3-14b": 14768,
    "qwen3-32b": 32762,
    "qwen2.5-0.5b": 494,
    "qwen2.5-1.5b": 1544,
    "qwen2.5-3b": 3086,
    "qwen2.5-7b": 7616,
    "qwen2.5-14b": 14770,
    "qwen2.5-32b": 32764,
    "llama-3-8b": 8030,
    "llama-3.1-8b": 8030,
    "llama-3.2-1b": 1236,
    "llama-3.2-3b": 3213,
    "llama-3.3-70b": 70554,
}


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items())
def test_a_preset_has_the_published_number_of_parameters(name: str, millions: int) -> None:
    assert parameter_count(ModelConfig(preset=name)) // 1_000_000 == pytest.approx(millions, abs=1)


def test_every_preset_is_an_architecture() -> None:
    assert all(ModelConfig(preset=name).preset == "" for name in ARCHITECTURES)


def test_given_values_take_precedence_over_a_preset() -> None:
    config = ModelConfig.model_validate({"preset": "llama-3.1-8b", "precision": "float32", "layers": 2})
    assert (config.layers, config.precision, config.width) == (2, "float32", 4096)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.factor, config.rope_scaling.original_context) == (8.0, 8192)


def test_a_resolved_preset_reads_back_as_it_is() -> None:
    config = ModelConfig(preset="qwen3-4b")
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"no preset 'qwen9'; there are qwen3-0\.6b"):
        ModelConfig(preset="qwen9")
