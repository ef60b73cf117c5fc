"""Compute attention: decide which keys a query sees, and mix their values.

The model passes each layer's queries, keys and values to an `Attend`; training, prompts and caches differ in nothing
else. Queries are [batch, time, query_heads, head_size], normalised and rotated; keys and values [batch, slots,
key_value_heads, head_size]; the result has the shape of the queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rollcast.policy.flash import flash_attention

#: Takes the layer's index, queries, keys and values; returns the values mixed by attention, shaped like the queries.
Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]

#: dense computes the scores of whole rows, blocks is rollcast.policy.flash, cudnn is NVIDIA's fused kernel, and splash
#: is jax's kernel for TPUs.
Kernel = Literal["dense", "blocks", "cudnn", "splash"]

_LANE = 128  # row lengths and head sizes must be multiples of this on a TPU
_DENSE_TOKENS_MAX = 512  # up to this length the scores of whole rows are small, and faster than blocks

# Score of a masked key: far below any real score, and finite so that rows without a single key stay finite.
MASKED_SCORE = -1e30


def attend_where(queries: jax.Array, keys: jax.Array, values: jax.Array, allowed: jax.Array) -> jax.Array:
    """Compute grouped-query attention with a mask bool [batch, time, slots]; scores and softmax are float32."""
    batch, time, query_heads, head_size = queries.shape
    key_value_heads = keys.shape[2]
    grouped = queries.reshape(batch, time, key_value_heads, query_heads // key_value_heads, head_size)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(allowed[:, None, None], scores * head_size**-0.5, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(queries.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, values).reshape(queries.shape)


def within_segments(segments: jax.Array) -> jax.Array:
    """Return the mask bool [batch, time, time] in which each token sees itself and the earlier ones of its sequence.

    segments: i32 [batch, time], 0 on padding, one number for each sequence in a row.
    """
    time = segments.shape[1]
    same = (segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] > 0)
    return jnp.tril(jnp.ones((time, time), bool))[None] & same


def segment_attend(segments: jax.Array, kernel: Kernel | None = None, mesh: Mesh | None = None) -> Attend:
    """Return causal attention within each sequence of a row (see within_segments), for training and reading prompts.

    kernel: the kernel to use; None: the one that suits the device, the length and the dtype. mesh: the devices that
    the rows are divided among, for kernels that need it.
    """
    allowed = within_segments(segments)

    def attend(_layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        match kernel or kernel_for(jax.default_backend(), queries.shape[1], queries.shape[3], queries.dtype):
            case "dense":
                return attend_where(queries, keys, values, allowed)
            case "blocks":
                return flash_attention(queries, keys, values, segments)
            case "cudnn":
                mask = allowed[:, None] | jnp.eye(allowed.shape[1], dtype=bool)  # a row without a key would be NaN
                return jax.nn.dot_product_attention(queries, keys, values, mask=mask, implementation="cudnn")
            case "splash":
                return splash(queries, keys, values, segments, mesh)

    return attend


def kernel_for(backend: str, time: int, head_size: int, dtype: Any) -> Kernel:
    """Return the kernel that a backend ("cpu", "gpu", "tpu") uses for rows of ``time`` tokens."""
    if backend == "gpu" and jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16) and head_size % 8 == 0:
        return "cudnn"
    if backend == "tpu" and time % _LANE == 0 and head_size % _LANE == 0:
        return "splash"
    return "dense" if time <= _DENSE_TOKENS_MAX else "blocks"


def splash(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, mesh: Mesh | None) -> jax.Array:
    """Call jax's TPU kernel once a row; on a mesh each device has its own rows and heads."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    def rows(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> jax.Array:
        time, heads, head_size = queries.shape[1:]
        causal = splash_attention_mask.CausalMask((time, time))
        kernel = splash_attention_kernel.make_splash_mha_single_device(
            splash_attention_mask.MultiHeadMask([causal] * heads)
        )

        def row(query: jax.Array, key: jax.Array, value: jax.Array, own: jax.Array) -> jax.Array:
            mixed: jax.Array = kernel(query, key, value, splash_attention_kernel.SegmentIds(own, own))
            return mixed

        heads_first = (jnp.moveaxis(array, 1, 2) for array in (queries * head_size**-0.5, keys, values))
        return jnp.moveaxis(jax.vmap(row)(*heads_first, segments), 1, 2)

    if mesh is None:
        return rows(queries, keys, values, segments)
    *row_axes, head_axis = mesh.axis_names
    by_head = PartitionSpec(tuple(row_axes), None, head_axis)
    specs = (by_head, by_head, by_head, PartitionSpec(tuple(row_axes)))
    mixed: jax.Array = jax.shard_map(rows, mesh=mesh, in_specs=specs, out_specs=by_head, check_vma=False)(
        queries, keys, values, segments
    )
    return mixed
