"""Compute attention block by block for rows of many tokens (Dao et al. 2022, FlashAttention, algorithm 1).

The whole matrix of scores never exists. This is XLA without a kernel of its own, for every platform;
rollcast.policy.attention chooses a platform's kernel where that is better. Blocks of keys that come after the queries
are skipped. The backward pass recomputes scores from the row sums that the forward pass kept (Dao 2023,
FlashAttention-2, section 3.1).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rollcast.policy.kernels.dense import MASKED_SCORE

BLOCK = 256


def flash_attention(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> jax.Array:
    """Compute causal attention within segments, like rollcast.policy.kernels.dense.

    queries: [batch, time, query_heads, head_size]. keys, values: [batch, time, key_value_heads, head_size]. segments:
    i32 [batch, time]. ``time`` may be any length: it is padded to whole blocks. Scores and sums are float32. The result
    has the shape and dtype of the queries.
    """
    time = queries.shape[1]
    spare = -time % BLOCK
    widths = ((0, 0), (0, spare), (0, 0), (0, 0))
    padded = (jnp.pad(array, widths) for array in (queries, keys, values))
    mixed: jax.Array = _attend(*padded, jnp.pad(segments, ((0, 0), (0, spare))))
    return mixed[:, :time]


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _attend(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> jax.Array:
    return _forward(queries, keys, values, segments)[0]


def _forward(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> tuple[jax.Array, Any]:
    grouped = _grouped(queries, keys.shape[2])

    def rows(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Attend from one block of queries to all blocks of keys up to its own; also return log sums of the rows."""
        own = _block(grouped, index)
        shape = (own.shape[0], own.shape[2], own.shape[3], BLOCK)  # batch, kv heads, group, time

        def add(other: Any, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            highest, total, mixed = sums
            scores = _scores(own, _block(keys, other), segments, index, other)
            higher = jnp.maximum(highest, jnp.max(scores, axis=-1))
            weights, kept = jnp.exp(scores - higher[..., None]), jnp.exp(highest - higher)
            more = jnp.einsum(
                "bkgts,bskh->bkgth",
                weights.astype(values.dtype),
                _block(values, other),
                preferred_element_type=jnp.float32,
            )
            return higher, kept * total + jnp.sum(weights, axis=-1), kept[..., None] * mixed + more

        nothing = (
            jnp.full(shape, MASKED_SCORE, jnp.float32),
            jnp.zeros(shape, jnp.float32),
            jnp.zeros((*shape, own.shape[-1]), jnp.float32),
        )
        highest, total, mixed = jax.lax.fori_loop(0, index + 1, add, nothing)
        return (mixed / total[..., None]).astype(queries.dtype), highest + jnp.log(total)

    blocks = queries.shape[1] // BLOCK
    mixed, log_sums = jax.lax.map(rows, jnp.arange(blocks, dtype=jnp.int32))
    # [blocks, batch, kv heads, group, time, head] -> like the queries
    found = jnp.moveaxis(mixed, (0, 4), (1, 2)).reshape(queries.shape)
    return found, (queries, keys, values, segments, found, log_sums)


def _backward(residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    queries, keys, values, segments, found, log_sums = residuals
    heads = keys.shape[2]
    grouped, by_mixed = _grouped(queries, heads), _grouped(cotangent, heads)
    # The softmax's gradient needs the sum over keys of weight * its gradient. It equals output * gradient of the output
    # summed over the head, for which no scores are needed (FlashAttention-2, algorithm 2).
    dots = jnp.sum(cotangent.astype(jnp.float32) * found.astype(jnp.float32), axis=-1)
    dots = dots.reshape(*dots.shape[:2], heads, -1)  # [batch, time, kv heads, group]
    blocks = queries.shape[1] // BLOCK
    scale = queries.shape[-1] ** -0.5

    def columns(by_queries: jax.Array, other: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Accumulate the gradients of one block of keys and values over all blocks of queries from its own on."""
        key, value = _block(keys, other), _block(values, other)

        def add(index: Any, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            by_queries, by_key, by_value = sums
            own, given = _block(grouped, index), _block(by_mixed, index)
            log_sum = jax.lax.dynamic_index_in_dim(log_sums, index, keepdims=False)
            weights = jnp.exp(_scores(own, key, segments, index, other) - log_sum[..., None])
            by_weights = jnp.einsum("btkgh,bskh->bkgts", given, value, preferred_element_type=jnp.float32)
            dot = jnp.moveaxis(_block(dots, index), 1, -1)
            by_scores = (weights * (by_weights - dot[..., None]) * scale).astype(queries.dtype)
            weights = weights.astype(queries.dtype)
            by_value += jnp.einsum("bkgts,btkgh->bskh", weights, given, preferred_element_type=jnp.float32)
            by_key += jnp.einsum("bkgts,btkgh->bskh", by_scores, own, preferred_element_type=jnp.float32)
            more = jnp.einsum("bkgts,bskh->btkgh", by_scores, key, preferred_element_type=jnp.float32)
            by_queries = jax.lax.dynamic_update_slice_in_dim(
                by_queries, _block(by_queries, index) + more, index * BLOCK, axis=1
            )
            return by_queries, by_key, by_value

        zeros = jnp.zeros(key.shape, jnp.float32)
        by_queries, by_key, by_value = jax.lax.fori_loop(other, blocks, add, (by_queries, zeros, zeros))
        return by_queries, (by_key, by_value)

    start = jnp.zeros(grouped.shape, jnp.float32)
    by_queries, by_blocks = jax.lax.scan(columns, start, jnp.arange(blocks, dtype=jnp.int32))
    by_keys, by_values = (jnp.moveaxis(one, 0, 1).reshape(keys.shape).astype(keys.dtype) for one in by_blocks)
    return by_queries.reshape(queries.shape).astype(queries.dtype), by_keys, by_values, None


_attend.defvjp(_forward, _backward)


def _scores(own: jax.Array, key: jax.Array, segments: jax.Array, index: Any, other: Any) -> jax.Array:
    """Return the scores f32 [batch, kv heads, group, time, slots] of a block of queries and a block of keys.

    Pairs that may not attend get MASKED_SCORE.
    """
    scores = jnp.einsum("btkgh,bskh->bkgts", own, key, preferred_element_type=jnp.float32) * own.shape[-1] ** -0.5
    within = jnp.arange(BLOCK, dtype=jnp.int32)
    before = index * BLOCK + within[:, None] >= other * BLOCK + within[None, :]
    same = _block(segments, index)[:, :, None] == _block(segments, other)[:, None, :]
    return jnp.where((same & before)[:, None, None], scores, MASKED_SCORE)


def _grouped(heads: jax.Array, key_value_heads: int) -> jax.Array:
    """Reshape [batch, time, heads, head] to [batch, time, kv heads, group, head]."""
    return heads.reshape(*heads.shape[:2], key_value_heads, -1, heads.shape[-1])


def _block(array: jax.Array, index: Any) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, index * BLOCK, BLOCK, axis=1)
