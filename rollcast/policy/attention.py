"""Which keys a query sees, and what it makes of them.

The model hands each layer's queries, keys and values to an `Attend`; training, prompts and caches differ in nothing
else. Queries are [batch, time, query_heads, head_size], normalised and rotated; keys and values [batch, slots,
key_value_heads, head_size]; what comes back is like the queries.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

#: layer, queries, keys, values -> mixed values.
Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]

# Score of a masked key: far below any real score, and finite so that rows without a single key stay finite.
MASKED_SCORE = -1e30


def attend_where(queries: jax.Array, keys: jax.Array, values: jax.Array, allowed: jax.Array) -> jax.Array:
    """Grouped-query attention with a mask bool [batch, time, slots]; scores and softmax in float32."""
    batch, time, query_heads, head_size = queries.shape
    key_value_heads = keys.shape[2]
    grouped = queries.reshape(batch, time, key_value_heads, query_heads // key_value_heads, head_size)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(allowed[:, None, None], scores * head_size**-0.5, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(queries.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, values).reshape(queries.shape)


def within_segments(segments: jax.Array) -> jax.Array:
    """Mask bool [batch, time, time]: each token sees itself and what is before it in its own sequence.

    segments: i32 [batch, time], 0 on padding, one number for each sequence in a row.
    """
    time = segments.shape[1]
    same = (segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] > 0)
    return jnp.tril(jnp.ones((time, time), bool))[None] & same


def segment_attend(segments: jax.Array) -> Attend:
    """Causal attention within each sequence of a row: for training, and for reading prompts (see within_segments)."""
    allowed = within_segments(segments)

    def attend(_layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        return attend_where(queries, keys, values, allowed)

    return attend
