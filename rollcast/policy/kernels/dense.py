"""Compute attention with the scores of whole rows: for short rows, and as the definition that other kernels meet."""

from __future__ import annotations

import jax
import jax.numpy as jnp

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
