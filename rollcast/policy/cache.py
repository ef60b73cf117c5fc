"""Keys and values in pages: reading tokens into them, and attending to them through block tables.

One pool of pages serves all sequences (Kwon et al. 2023, section 4.2). A sequence's block table names the pages that
hold its tokens in order, so that sequences with the same beginning share its pages. Page 0 is nobody's: what must go
nowhere is written there.

New tokens attend to each other directly and to what is in the pages through an online softmax (Milakov and
Gimelshein 2018), a run of pages at a time, and only as far as the longest sequence reaches. A run that a sequence does
not reach changes nothing for it, not even a rounding: its result does not depend on the lengths of others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollcast.policy.attention import MASKED_SCORE
from rollcast.policy.config import ModelConfig
from rollcast.policy.model import Decoder

# Tokens of a sequence that one turn of the attention loop reads. A CPU wants what it copies to stay in its cache;
# an accelerator few turns.
RUN_TOKENS = {"cpu": 64}
RUN_TOKENS_ELSEWHERE = 1024


class Pages(NamedTuple):
    """All pages of all layers, in the model's carrier dtype.

    Keys lie [pages, layers, key_value_heads, head_size, page_tokens]: scores then are sums of whole vectors of tokens.
    Values lie [pages, layers, key_value_heads, page_tokens, head_size].
    """

    keys: jax.Array
    values: jax.Array

    @property
    def page_tokens(self) -> int:
        """Tokens of one page."""
        return int(self.values.shape[3])


def empty_pages(config: ModelConfig, pages: int, page_tokens: int) -> Pages:
    """A pool of ``pages`` pages, the page that is nobody's included."""
    start, dtype = (pages, config.layers, config.key_value_heads), jnp.dtype(config.carrier_dtype)
    return Pages(
        jnp.zeros((*start, config.head_size, page_tokens), dtype),
        jnp.zeros((*start, page_tokens, config.head_size), dtype),
    )


def page_bytes(config: ModelConfig, page_tokens: int) -> int:
    """Memory of one page."""
    itemsize = jnp.dtype(config.carrier_dtype).itemsize
    return 2 * config.layers * config.key_value_heads * config.head_size * page_tokens * itemsize


def copy_pages(pages: Pages, sources: Any, targets: Any) -> Pages:
    """Copy whole pages, i32 [copies] each; 0 to 0 where there is nothing to copy."""
    return Pages(pages.keys.at[targets].set(pages.keys[sources]), pages.values.at[targets].set(pages.values[sources]))


def extend(
    model: Decoder, pages: Pages, tables: jax.Array, tokens: jax.Array, starts: jax.Array, counts: jax.Array
) -> tuple[jax.Array, Pages]:
    """Read tokens i32 [batch, time] that follow the ``starts`` i32 [batch] tokens that each sequence has in its pages.

    tables: i32 [batch, pages of a sequence]. counts: i32 [batch], tokens that count; the rest is padding and its keys
    and values go nowhere. Returns hidden states [batch, time, width] (those of padding mean nothing) and the pages.
    """
    time = tokens.shape[1]
    positions = starts[:, None] + jnp.arange(time, dtype=jnp.int32)[None, :]
    news: list[tuple[jax.Array, jax.Array]] = []

    def attend(layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        news.append((keys, values))
        return attend_with_pages(queries, keys, values, pages, tables, starts, layer)

    hidden = model(tokens, positions, attend)
    size = pages.page_tokens
    counted = jnp.arange(time, dtype=jnp.int32)[None, :] < counts[:, None]
    slots = jnp.clip(positions // size, 0, tables.shape[1] - 1)
    rows = jnp.where(counted, jnp.take_along_axis(tables, slots, axis=1), 0).reshape(-1)
    places = (positions % size).reshape(-1)

    def flat(parts: list[jax.Array]) -> jax.Array:  # [batch * time, layers, key_value_heads, head_size]
        stacked = jnp.stack(parts, axis=2)
        return stacked.reshape(-1, *stacked.shape[2:])

    keys = pages.keys.at[rows, :, :, :, places].set(flat([new[0] for new in news]))
    values = pages.values.at[rows, :, :, places].set(flat([new[1] for new in news]))
    return hidden, Pages(keys, values)


class _Softmax(NamedTuple):
    """An online softmax, f32 [batch, key_value_heads, queries of a head] and acc [..., head_size]."""

    highest: jax.Array
    total: jax.Array
    mixed: jax.Array


def attend_with_pages(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    pages: Pages,
    tables: jax.Array,
    starts: jax.Array,
    layer: int,
) -> jax.Array:
    """Causal grouped-query attention of new tokens to themselves and to the ``starts`` tokens before them.

    queries [batch, time, query_heads, head_size]; keys, values [batch, time, key_value_heads, head_size] of the same
    tokens. Scores and softmax in float32. Returns what attention.Attend does.
    """
    batch, time, query_heads, head_size = queries.shape
    heads = keys.shape[2]
    grouped = queries.reshape(batch, time, heads, query_heads // heads, head_size).transpose(0, 2, 3, 1, 4)
    rows = grouped.reshape(batch, heads, -1, head_size)  # query (group, time), time fastest
    scale = head_size**-0.5

    own_scores = jnp.einsum("bkqh,btkh->bkqt", rows, keys, preferred_element_type=jnp.float32) * scale
    causal = jnp.tile(jnp.tril(jnp.ones((time, time), bool)), (query_heads // heads, 1))
    own_scores = jnp.where(causal, own_scores, MASKED_SCORE)
    highest = own_scores.max(-1)
    weights = jnp.exp(own_scores - highest[..., None])
    mixed = jnp.einsum("bkqt,btkh->bkqh", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    state = _Softmax(highest, weights.sum(-1), mixed)

    turn_pages = _turn_pages(pages.page_tokens, tables.shape[1])
    turn_tokens = turn_pages * pages.page_tokens

    def turn(index: jax.Array, state: _Softmax) -> _Softmax:
        chosen = jax.lax.dynamic_slice_in_dim(tables, index * turn_pages, turn_pages, axis=1)
        past_keys, past_values = pages.keys[chosen, layer], pages.values[chosen, layer]
        scores = jnp.einsum("bkqh,bnkhs->bkqns", rows, past_keys, preferred_element_type=jnp.float32) * scale
        scores = scores.reshape(*scores.shape[:3], turn_tokens)
        seen = index * turn_tokens + jnp.arange(turn_tokens, dtype=jnp.int32)[None, :] < starts[:, None]
        scores = jnp.where(seen[:, None, None, :], scores, MASKED_SCORE)
        highest = jnp.maximum(state.highest, scores.max(-1))
        weights = jnp.exp(scores - highest[..., None])
        kept = jnp.exp(state.highest - highest)
        parts = weights.reshape(*weights.shape[:3], turn_pages, -1).astype(past_values.dtype)
        new = jnp.einsum("bkqns,bnksh->bkqh", parts, past_values, preferred_element_type=jnp.float32)
        return _Softmax(highest, state.total * kept + weights.sum(-1), state.mixed * kept[..., None] + new)

    turns = (jnp.max(starts) + turn_tokens - 1) // turn_tokens
    state = jax.lax.fori_loop(0, turns, turn, state)
    result = (state.mixed / state.total[..., None]).astype(queries.dtype)
    result = result.reshape(batch, heads, query_heads // heads, time, head_size)
    return result.transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def _turn_pages(page_tokens: int, table_pages: int) -> int:
    """Pages that one turn reads: a divisor of the table, so that its last slice is whole."""
    most = max(1, RUN_TOKENS.get(jax.default_backend(), RUN_TOKENS_ELSEWHERE) // page_tokens)
    return next(pages for pages in range(min(most, table_pages), 0, -1) if table_pages % pages == 0)
