"""Compute attention: decide which keys a query sees, and mix their values.

The model passes each layer's queries, keys and values to an `Attend`; training, prompts and caches differ in nothing
else. Queries are [batch, time, query_heads, head_size], normalised and rotated; keys and values [batch, slots,
key_value_heads, head_size]; the result has the shape of the queries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rollcast.policy.kernels.cudnn import cudnn_attention, refusal
from rollcast.policy.kernels.dense import attend_where, within_segments
from rollcast.policy.kernels.flash import flash_attention
from rollcast.policy.shapes import head_copies

#: Takes the layer's index (an int, or i32 in a loop over layers), queries, keys and values; returns the values mixed
#: by attention, shaped like the queries.
Attend = Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array]

#: dense computes the scores of whole rows and blocks a part of them at a time; cudnn is NVIDIA's fused kernel, and
#: splash is jax's kernel for TPUs. Each is a module of rollcast.policy.kernels.
Kernel = Literal["dense", "blocks", "cudnn", "splash"]

_TILE = 128  # rows of the platforms' kernels are padded to a multiple of this many tokens
_DENSE_TOKENS_MAX = 512  # up to this length the scores of whole rows are small, and faster than blocks

_CUDNN_CAPABILITY_MIN = 8.0  # Ampere is the first generation with the fused kernel,
_PACKED_CAPABILITY_MIN = 9.0  # and Hopper the first with several sequences in a row and head sizes above 128


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of device, as far as the choice of a kernel depends on it."""

    platform: str
    """cpu, gpu or tpu."""
    compute_capability: float = 0.0
    """The generation of an NVIDIA GPU, for example 9.0 for an H100; 0 for all other devices."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel, and why it is not a better one."""

    kernel: Kernel
    reason: str = ""
    """One clause; empty if the device has no better kernel."""


def segment_attend(
    segments: jax.Array, kernel: Kernel | None = None, mesh: Mesh | None = None, *, packed: bool = True
) -> Attend:
    """Return causal attention within each sequence of a row, for training and for prefill.

    segments: see dense.within_segments. Sequences follow each other from the start of the row, numbered from 1, with
    padding behind the last one. kernel: the kernel to use; None: the one that suits the device, the length and the
    dtype. mesh: the devices that the rows are divided among, for kernels that need it. packed: whether a row may hold
    several sequences; cuDNN takes at most cudnn.ROW_SEQUENCES_MAX.
    """

    def attend(_layer: Any, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        match kernel or kernel_here(queries.shape[1], queries.shape[3], queries.dtype, packed=packed).kernel:
            case "dense":
                return attend_where(queries, keys, values, within_segments(segments))
            case "blocks":
                return flash_attention(queries, keys, values, segments)
            case "cudnn":
                compute = functools.partial(cudnn_attention, packed=packed)
                return _on_mesh(_in_tiles(compute, _TILE), queries, keys, values, segments, mesh)
            case "splash":
                # Pallas, which only TPUs need here, takes half a second and 16 MiB to import.
                from rollcast.policy.kernels.splash import splash_attention, splash_block

                block = splash_block(queries.shape[1])
                compute = functools.partial(splash_attention, block=block)
                return _on_mesh(_in_tiles(compute, block), queries, keys, values, segments, mesh)

    return attend


def kernel_here(time: int, head_size: int, dtype: Any, *, packed: bool) -> KernelChoice:
    """Return kernel_for of this process's devices; cuDNN's kernel only if it passes a check on the device."""
    device = this_device()
    choice = kernel_for(device, time, head_size, dtype, packed=packed)
    reason = refusal(packed=packed) if choice.kernel == "cudnn" else ""
    return KernelChoice(_xla_kernel(time), reason) if reason else choice


def this_device() -> Device:
    """Return the kind of this process's devices."""
    platform = jax.default_backend()
    capability = getattr(jax.local_devices()[0], "compute_capability", 0.0)  # a string such as "9.0"
    return Device(platform, float(capability) if platform == "gpu" else 0.0)


def kernel_for(device: Device, time: int, head_size: int, dtype: Any, *, packed: bool) -> KernelChoice:
    """Return the kernel that a kind of device uses for rows of ``time`` tokens; packed: see segment_attend."""
    match device.platform:
        case "gpu":
            reason = _cudnn_refusal(device.compute_capability, head_size, dtype, packed=packed)
            best: Kernel = "cudnn"
        case "tpu":
            reason = _splash_refusal(time, head_size)
            best = "splash"
        case _:
            return KernelChoice(_xla_kernel(time))
    return KernelChoice(_xla_kernel(time), reason) if reason else KernelChoice(best)


def _xla_kernel(time: int) -> Kernel:
    return "dense" if time <= _DENSE_TOKENS_MAX else "blocks"


def _cudnn_refusal(capability: float, head_size: int, dtype: Any, *, packed: bool) -> str:
    head_size_max = 256 if capability >= _PACKED_CAPABILITY_MIN else 128
    if capability < _CUDNN_CAPABILITY_MIN:
        return f"cuDNN's kernel needs compute capability {_CUDNN_CAPABILITY_MIN}, and this GPU has {capability}"
    if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN's kernel takes bfloat16 and float16, and these values are {jnp.dtype(dtype).name}"
    if head_size % 8 or head_size > head_size_max:
        return f"cuDNN's kernel takes head sizes up to {head_size_max} that 8 divides, and this one is {head_size}"
    if packed and capability < _PACKED_CAPABILITY_MIN:
        return (
            f"cuDNN's kernel takes several sequences in a row from compute capability {_PACKED_CAPABILITY_MIN} on, "
            f"and this GPU has {capability}"
        )
    return ""


def _splash_refusal(time: int, head_size: int) -> str:
    if head_size % 8:
        return f"splash takes head sizes that 8 divides, and this one is {head_size}"
    return f"a row of {time} tokens is shorter than a block of splash" if time < _TILE else ""


#: Takes queries, keys, values and segments of rows; returns the values mixed by attention.
_Rows = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def _in_tiles(compute: _Rows, tile: int) -> _Rows:
    """Return ``compute`` for rows of any length: they are padded to a multiple of ``tile`` tokens."""

    def rows(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> jax.Array:
        time = queries.shape[1]
        spare = (0, -time % tile)
        by_head = ((0, 0), spare, (0, 0), (0, 0))
        queries, keys, values = (jnp.pad(array, by_head) for array in (queries, keys, values))
        return compute(queries, keys, values, jnp.pad(segments, ((0, 0), spare)))[:, :time]

    return rows


def _on_mesh(
    compute: _Rows,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    segments: jax.Array,
    mesh: Mesh | None,
) -> jax.Array:
    """Call ``compute``, on a mesh so that each device has its own rows and heads; the last axis divides the heads."""
    if mesh is None:
        return compute(queries, keys, values, segments)
    *row_axes, head_axis = mesh.axis_names
    query_heads, key_value_heads, shards = queries.shape[2], keys.shape[2], mesh.shape[head_axis]
    rows, copies = tuple(row_axes), head_copies(query_heads, key_value_heads, shards)
    # Heads that cannot be divided are computed by all devices of the axis.
    by_head = PartitionSpec(rows, None, head_axis if copies else None)
    keys, values = (jnp.repeat(array, copies or 1, axis=2) for array in (keys, values))
    mixed: jax.Array = jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=(by_head, by_head, by_head, PartitionSpec(rows)),
        out_specs=by_head,
        check_vma=False,
    )(queries, keys, values, segments)
    return mixed
