"""Call cuDNN's fused attention on NVIDIA GPUs, for rows of one sequence each or of several.

The kernel gets the sequences' lengths and offsets and skips what they exclude, so that neither a mask nor a bias of
[time, time] exists. Rows of several sequences use cuDNN's packed layout (jax pull request 25812), which needs a Hopper
GPU; jax has no public function for it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rollcast.policy.kernels.dense import attend_where, within_segments

#: Most sequences of a packed row: the kernel keeps f32 [sequences, query_heads, time] a row for the backward pass.
ROW_SEQUENCES_MAX = 64

_CHECK_LENGTHS = ((70, 1, 57), (128,))  # tokens of each sequence, by row of 128 tokens
_CHECK_DIFFERENCE_MAX = 0.05  # relative to the largest value; bfloat16 has 8 bits


def cudnn_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, *, packed: bool
) -> jax.Array:
    """Compute causal attention within the sequences of a row; arguments and result as in attention.segment_attend.

    packed: whether a row may hold several sequences, at most ROW_SEQUENCES_MAX; otherwise it holds one. Padding gets
    zeros and has no gradient.
    """
    valid = (segments > 0)[..., None, None]
    # The kernel leaves results and gradients of padding as the memory was; these selections keep both out.
    own, key, value = (jnp.where(valid, array, 0) for array in (queries, keys, values))
    mixed = _packed(own, key, value, segments) if packed else _single(own, key, value, segments)
    return jnp.where(valid, mixed, 0)


def sequence_places(segments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return lengths i32 [batch, ROW_SEQUENCES_MAX] and starts i32 [batch, ROW_SEQUENCES_MAX + 1] of sequences.

    segments: see attention.segment_attend. Places without a sequence are -1, as cuDNN's packed layout wants them.
    """
    numbers = jnp.arange(1, ROW_SEQUENCES_MAX + 1, dtype=jnp.int32)
    counts = jnp.sum(segments[:, :, None] == numbers, axis=1, dtype=jnp.int32)
    starts = jnp.where(counts > 0, jnp.cumsum(counts, axis=1, dtype=jnp.int32) - counts, -1)
    return jnp.where(counts > 0, counts, -1), jnp.pad(starts, ((0, 0), (0, 1)), constant_values=-1)


def _single(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> jax.Array:
    lengths = jnp.sum(segments > 0, axis=1, dtype=jnp.int32)
    mixed: jax.Array = jax.nn.dot_product_attention(
        queries,
        keys,
        values,
        is_causal=True,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )
    return mixed


def _packed(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> jax.Array:
    from jax._src.cudnn import fused_attention_stablehlo as fused

    lengths, starts = sequence_places(segments)
    # jax 0.10 multiplies the offsets of keys by the number of query heads (jax pull request 39521), so that fewer key
    # heads would be read at wrong places. Repeated heads are right with and without that mend.
    group = queries.shape[2] // keys.shape[2]
    mixed: jax.Array = fused.dot_product_attention(
        queries,
        jnp.repeat(keys, group, axis=2),
        jnp.repeat(values, group, axis=2),
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=starts,
        kv_offsets=starts,
        scale=queries.shape[3] ** -0.5,
        mask_type=fused.MaskType.PADDING_CAUSAL,
    )
    return mixed


@functools.cache
def refusal(*, packed: bool) -> str:
    """Return why this process's GPU cannot use the kernel; empty if it computes values and gradients as it should."""
    try:
        with jax.ensure_compile_time_eval():  # the caller may be tracing, and values are needed here
            difference = _difference(packed=packed)
    except Exception as error:  # compilers raise many kinds of errors; after any of them another kernel does the work
        return f"cuDNN's kernel failed its check: {type(error).__name__}: {error}"[:500]
    return "" if difference <= _CHECK_DIFFERENCE_MAX else f"cuDNN's kernel is {difference:.2g} off in its check"


def _difference(*, packed: bool) -> float:
    """Return the largest difference of values and gradients from whole float32 scores, relative to the largest."""
    rows = _CHECK_LENGTHS if packed else ((100,), (128,))
    numbers = [np.repeat(np.arange(1, len(row) + 1), row) for row in rows]
    segments = jnp.asarray([np.pad(row, (0, 128 - len(row))) for row in numbers], jnp.int32)
    random = np.random.default_rng(0)
    arrays = [jnp.asarray(random.normal(size=(2, 128, heads, 64)), jnp.bfloat16) for heads in (4, 2, 2)]
    given = jnp.where((segments > 0)[..., None, None], jnp.asarray(random.normal(size=(2, 128, 4, 64))), 0.0)

    def fused(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        mixed = cudnn_attention(query, key, value, segments, packed=packed)
        return jnp.sum(mixed.astype(jnp.float32) * given)

    def whole(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        query, key, value = (array.astype(jnp.float32) for array in (query, key, value))
        return jnp.sum(attend_where(query, key, value, within_segments(segments)) * given)

    found = jax.jit(jax.value_and_grad(fused, argnums=(0, 1, 2)))(*arrays)
    expected = jax.jit(jax.value_and_grad(whole, argnums=(0, 1, 2)))(*arrays)
    pairs = [
        (np.asarray(one, np.float32), np.asarray(other, np.float32))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    ]
    # A NaN compares as false everywhere, so it must become a large difference.
    return max(
        float(np.nan_to_num(np.max(np.abs(one - other)) / np.max(np.abs(other)), nan=np.inf)) for one, other in pairs
    )
