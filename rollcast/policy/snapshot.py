"""Freeze parameters into snapshots: the bytes exactly as the rollout's forward pass reads them.

`freeze` rounds the learner's masters to the configured precision once, with the code by which the training forward
reads them (rollcast.policy.products.linear); all roles then read those same bytes. A kernel in E4M3 is two tensors: its
codes, and an int8 exponent for each of their blocks. A base's kernel in NVFP4 is three: two codes to a byte, an E4M3
scale for each of their blocks, and a float32 scale. Tensors follow each other without gaps, in sorted order of their
names, row-major and little-endian.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.lora import adapter_shapes, adapter_specs, is_adapter, merged
from rollcast.policy.params import SCALE_SUFFIX, TENSOR_SCALE_SUFFIX, Params, abstract_snapshot
from rollcast.policy.products.linear import settled
from rollcast.policy.products.nvfp4 import PACKED, Packed, pack, unpack
from rollcast.policy.products.quantise import CODE, WEIGHT_BLOCK, Quantised, dequantise, quantise
from rollcast.policy.stacking import Layer, cut
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.tensors import TensorSpec, tensor_table

# The dtypes by TensorSpec.dtype, which holds NumPy's names.
_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a version: the tensors' specs in the order of the bytes, and the bytes."""

    tensors: tuple[TensorSpec, ...]
    state_bytes: BytesLike


def freeze(config: ModelConfig, params: Mapping[str, Any]) -> Snapshot:
    """Copy parameters (masters or a thawed snapshot, on any device) into a snapshot in the configured precision.

    They are all of a model without adapters, or those of a version of adapters.

    Tensors are copied one after the other, so that memory holds the snapshot and a copy of one tensor.
    """
    state = io.BytesIO()  # it grows in place, and getvalue does not copy the bytes
    for master in sorted(params):
        for bits in frozen_bits(config, master, params[master]).values():
            state.write(np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data)
    return Snapshot(specs_of(config, params), state.getvalue())


def frozen_bits(config: ModelConfig, name: str, value: Any) -> dict[str, jax.Array]:
    """Return the tensors of a snapshot that one parameter becomes, by name and in order, as unsigned integers.

    The parameter is an array, or a `Layer` of stacked parameters, which is read in place.

    They are a kernel's codes and scales, or the rounded value. They are copies on the parameter's devices. Integers
    keep each bit on any device, where a conversion between floating-point types may flush subnormal numbers to zero. A
    parameter that is a snapshot's tensor already keeps its bits.
    """
    dtype = _dtypes_by_name(config)[name]
    if dtype == CODE and value.dtype != CODE:
        if config.precision != "fp8":  # the naive flow quantises what its learner computes with
            value = cut(value).astype(config.carrier_dtype)
        codes, exponents = _quantised_bits(value)
        return {name: codes, f"{name}_scale": exponents}
    if dtype == PACKED and value.dtype != PACKED:
        codes, scales, tensor_scale = _packed_bits(value)
        return {name: codes, f"{name}_scale": scales, f"{name}_tensor_scale": tensor_scale}
    return {name: _rounded_bits(value, dtype)}


@functools.lru_cache(maxsize=16)
def _dtypes_by_name(config: ModelConfig) -> Mapping[str, np.dtype[Any]]:
    """Return the dtype of each tensor of a snapshot or adapter; kept, because freezing looks up each by itself."""
    dtypes = {name: np.dtype(leaf.dtype) for name, leaf in abstract_snapshot(config).items()}
    return dtypes | dict.fromkeys(adapter_shapes(config), jnp.dtype(config.carrier_dtype))


def _quantise_to_bits(matrix: jax.Array | Layer) -> tuple[jax.Array, jax.Array]:
    codes, exponents = quantise(cut(matrix), WEIGHT_BLOCK)
    return jax.lax.bitcast_convert_type(codes, jnp.uint8), jax.lax.bitcast_convert_type(exponents, jnp.uint8)


_quantised_bits = jax.jit(_quantise_to_bits)


def _pack_to_bits(matrix: jax.Array | Layer) -> tuple[jax.Array, ...]:
    packed = pack(cut(matrix))
    return tuple(jax.lax.bitcast_convert_type(leaf, f"u{leaf.dtype.itemsize}") for leaf in packed)


_packed_bits = jax.jit(_pack_to_bits)


@functools.partial(jax.jit, static_argnums=1)
def _rounded_bits(value: jax.Array | Layer, dtype: np.dtype[Any]) -> jax.Array:
    value = cut(value)
    if value.dtype == dtype:
        return jax.lax.bitcast_convert_type(value, f"u{dtype.itemsize}")
    if (value.dtype, dtype) != (jnp.float32, jnp.bfloat16):
        raise TypeError(f"a parameter in {value.dtype} cannot be frozen as {dtype}")
    return _bfloat16_bits(jax.lax.bitcast_convert_type(value, jnp.uint32))


def _bfloat16_bits(bits: jax.Array) -> jax.Array:
    """Return the bits u16 of the bfloat16 nearest to each float32 with these bits u32, ties to even; NaN becomes quiet.

    Adding 0x7FFF and the lowest bit that stays carries into the upper half exactly where rounding goes up, from
    mantissa to exponent too, subnormal numbers and overflow to infinity included.
    """
    upper = bits >> 16
    nearest = (bits + jnp.uint32(0x7FFF) + (upper & 1)) >> 16
    quiet_nan = (upper & 0x8000) | 0x7FC0
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return jnp.where(is_nan, quiet_nan, nearest).astype(jnp.uint16)


def tensor_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the specs that a snapshot of this architecture must have, without adapters; see adapter_specs."""
    return tensor_table((name, leaf.dtype.name, leaf.shape) for name, leaf in sorted(abstract_snapshot(config).items()))


def specs_of(config: ModelConfig, names: Iterable[str]) -> tuple[TensorSpec, ...]:
    """Return the specs of a state made of these parameters: of a version of adapters, or of a whole snapshot."""
    return adapter_specs(config) if any(map(is_adapter, names)) else tensor_specs(config)


def thaw(config: ModelConfig, tensors: Sequence[TensorSpec], state_bytes: Any) -> Params:
    """Load parameters onto the default device from a state (bytes, memoryview or memory map).

    On a CPU the result may share memory with ``state_bytes``, which must not change afterwards. To divide parameters
    among several devices, place the `views` of the state instead: then no device holds all of them.

    Raises:
        MalformedMessage: see views.
    """
    params: Params = jax.device_put(views(config, tensors, state_bytes))
    return params


def views(config: ModelConfig, tensors: Sequence[TensorSpec], state_bytes: Any) -> Params:
    """Return a state's tensors by name as NumPy arrays that share its memory; of a memory map they read nothing yet.

    The state is a whole snapshot, or that of a version of adapters.

    Raises:
        MalformedMessage: the tensors or the size are not those of this architecture.
    """
    found = tuple(tensors)
    if found != tensor_specs(config) and (not found or found != adapter_specs(config)):
        raise MalformedMessage(
            "the version's tensors are not those of its model",
            cause="names, dtypes, shapes or offsets differ from what the model configuration gives",
            fix="run the same release on the learner and on the peers",
        )
    size_bytes = sum(spec.size_bytes for spec in tensors)
    buffer = memoryview(state_bytes).cast("B")
    if len(buffer) != size_bytes:
        raise MalformedMessage(f"a state of {len(buffer)} bytes, expected {size_bytes}")
    return {spec.name: _view(buffer, spec) for spec in tensors}


def rounded_params(config: ModelConfig, name: str, value: Any) -> Params:
    """Return the tensors of a snapshot that one parameter becomes, by name, in their own dtypes; see frozen_bits."""
    dtypes = _dtypes_by_name(config)
    bits = frozen_bits(config, name, value)
    return {one: jax.lax.bitcast_convert_type(leaf, dtypes[one]) for one, leaf in bits.items()}


def without_codes(config: ModelConfig, params: Mapping[str, Any]) -> Params:
    """Replace codes and their scales by the numbers f32 that a forward pass reads, which the carrier's dtype holds."""
    whole: Params = {}
    for name, value in params.items():
        scale, tensor_scale = params.get(f"{name}_scale"), params.get(f"{name}_tensor_scale")
        if scale is not None and tensor_scale is not None:
            whole[name] = settled(unpack(Packed(value, scale, tensor_scale)), jnp.dtype(config.carrier_dtype))
        elif scale is not None:
            whole[name] = dequantise(Quantised(value, scale), WEIGHT_BLOCK)
        elif not name.endswith((SCALE_SUFFIX, TENSOR_SCALE_SUFFIX)):
            whole[name] = value
    return whole


def merged_params(config: ModelConfig, base: Mapping[str, Any], adapters: Mapping[str, Any]) -> Params:
    """Return float32 parameters in which the adapters are part of a base's kernels; of one layer each, or stacked."""
    return {name: merged(config, name, value, adapters) for name, value in without_codes(config, base).items()}


def _view(buffer: memoryview, spec: TensorSpec) -> np.ndarray[Any, Any]:
    dtype = _DTYPES[spec.dtype]
    count = spec.size_bytes // dtype.itemsize
    return np.frombuffer(buffer, dtype, count, spec.offset_bytes).reshape(spec.shape)
