"""Reading contexts into a cache of keys and values, and going on from it one token at a time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollcast.policy.attention import attend_where, within_segments
from rollcast.policy.model import Decoder


class LayerCache(NamedTuple):
    """Keys and values of one layer, [batch, slots, key_value_heads, head_size] each."""

    keys: jax.Array
    values: jax.Array


Cache = tuple[LayerCache, ...]


def prefill(
    model: Decoder, tokens: jax.Array, positions: jax.Array, segments: jax.Array, spare_slots: int
) -> tuple[jax.Array, Cache]:
    """Read left-padded contexts [batch, time]; leave ``spare_slots`` free cache slots behind them.

    segments: i32 [batch, time], 1 on tokens and 0 on padding. Returns logits f32 [batch, vocabulary] of each row's
    next token, and the cache of time + spare_slots slots.
    """
    allowed = within_segments(segments)
    spare = ((0, 0), (0, spare_slots), (0, 0), (0, 0))
    layers: list[LayerCache] = []

    def attend(_layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        layers.append(LayerCache(jnp.pad(keys, spare), jnp.pad(values, spare)))
        return attend_where(queries, keys, values, allowed)

    hidden = model(tokens, positions, attend)
    return model.logits(hidden[:, -1]), tuple(layers)


def decode(
    model: Decoder, tokens: jax.Array, positions: jax.Array, visible: jax.Array, cache: Cache, slot: jax.Array
) -> tuple[jax.Array, Cache]:
    """One token a row: tokens, positions i32 [batch]; visible bool [batch, slots]; written at cache ``slot``.

    Returns logits f32 [batch, vocabulary] of the next token, and the cache with the new keys and values.
    """
    layers: list[LayerCache] = []

    def attend(layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        past = cache[layer]
        now = LayerCache(
            jax.lax.dynamic_update_slice_in_dim(past.keys, keys, slot, axis=1),
            jax.lax.dynamic_update_slice_in_dim(past.values, values, slot, axis=1),
        )
        layers.append(now)
        return attend_where(queries, now.keys, now.values, visible[:, None, :])

    hidden = model(tokens[:, None], positions[:, None], attend)
    return model.logits(hidden[:, 0]), tuple(layers)
