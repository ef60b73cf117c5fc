"""Keep keys and values in pages: write tokens into them, and attend to them through block tables.

One pool of pages serves all sequences (Kwon et al. 2023, section 4.2). A sequence's block table lists the pages that
hold its tokens in order, so that sequences with the same beginning share its pages. Page 0 belongs to no sequence:
writes that must have no effect, such as those of padding, go there.

New tokens' keys and values are written first, layer by layer, and then attended to like all before them, through an
online softmax (Milakov and Gimelshein 2018), a run of pages at a time and only as far as the longest sequence reaches.
A run that a sequence does not reach changes nothing for it, not even a rounding: its result does not depend on the
lengths of others. Each layer has its own arrays, which are written before they are read: in any other order the
compiler copies all pages at every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollcast.policy.config import ModelConfig
from rollcast.policy.kernels.dense import MASKED_SCORE
from rollcast.policy.model import Decoder, Hidden

# How many tokens of a sequence one turn of the attention loop reads. On a CPU the copied pages should fit into its
# cache; an accelerator is faster with few turns.
RUN_TOKENS = {"cpu": 64}
RUN_TOKENS_ELSEWHERE = 1024


class Pages(NamedTuple):
    """All pages, one array per layer, in the model's carrier dtype.

    Keys are [pages, key_value_heads, head_size, page_tokens], so that scores are sums of whole vectors of tokens.
    Values are [pages, key_value_heads, page_tokens, head_size].
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]

    @property
    def page_tokens(self) -> int:
        """Return the number of tokens that one page holds."""
        return int(self.values[0].shape[2])


def empty_pages(config: ModelConfig, pages: int, page_tokens: int) -> Pages:
    """Return a pool of ``pages`` empty pages, including page 0, which belongs to no sequence."""
    start, dtype = (pages, config.key_value_heads), jnp.dtype(config.carrier_dtype)
    return Pages(
        tuple(jnp.zeros((*start, config.head_size, page_tokens), dtype) for _ in range(config.layers)),
        tuple(jnp.zeros((*start, page_tokens, config.head_size), dtype) for _ in range(config.layers)),
    )


def page_bytes(config: ModelConfig, page_tokens: int) -> int:
    """Return the memory of one page over all layers, in bytes."""
    itemsize = jnp.dtype(config.carrier_dtype).itemsize
    return 2 * config.layers * config.key_value_heads * config.head_size * page_tokens * itemsize


def copy_pages(pages: Pages, sources: Any, targets: Any) -> Pages:
    """Copy whole pages from ``sources`` to ``targets``, i32 [copies] each; an unused place copies page 0 to page 0."""
    copied: Pages = jax.tree.map(lambda layer: layer.at[targets].set(layer[sources]), pages)
    return copied


def extend(
    model: Decoder, pages: Pages, tables: jax.Array, tokens: jax.Array, starts: jax.Array, counts: jax.Array
) -> tuple[Hidden, Pages]:
    """Read tokens i32 [batch, time] that follow the ``starts`` i32 [batch] tokens that each sequence has in its pages.

    tables: i32 [batch, pages of a sequence]. counts: i32 [batch], how many tokens of each row are valid; the rest is
    padding, and its keys and values are written to page 0. Returns hidden states [batch, time, width] and with
    experts the routes, both meaningless for padding, and the pages.
    """
    time, size = tokens.shape[1], pages.page_tokens
    steps = jnp.arange(time, dtype=jnp.int32)[None, :]
    positions = starts[:, None] + steps
    slots = jnp.clip(positions // size, 0, tables.shape[1] - 1)
    rows = jnp.where(steps < counts[:, None], jnp.take_along_axis(tables, slots, axis=1), 0).reshape(-1)
    places = (positions % size).reshape(-1)
    written: list[tuple[jax.Array, jax.Array]] = []

    def attend(layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        shape = (-1, *keys.shape[2:])
        now = (
            pages.keys[layer].at[rows, :, :, places].set(keys.reshape(shape)),
            pages.values[layer].at[rows, :, places].set(values.reshape(shape)),
        )
        written.append(now)
        return attend_to_pages(queries, *now, tables, positions)

    hidden = model(tokens, positions, attend)
    return hidden, Pages(tuple(keys for keys, _ in written), tuple(values for _, values in written))


class _Softmax(NamedTuple):
    """An online softmax's state, f32 [batch, key_value_heads, queries of a head]; mixed also has a head_size axis."""

    highest: jax.Array
    total: jax.Array
    mixed: jax.Array


def attend_to_pages(
    queries: jax.Array, keys: jax.Array, values: jax.Array, tables: jax.Array, positions: jax.Array
) -> jax.Array:
    """Attend from queries at ``positions`` i32 [batch, time] to all tokens up to there, with grouped queries.

    queries: [batch, time, query_heads, head_size]. keys, values: one layer of Pages. Scores and softmax are float32.
    Returns what attention.Attend does.
    """
    batch, time, query_heads, head_size = queries.shape
    heads, page_tokens = values.shape[1:3]
    grouped = queries.reshape(batch, time, heads, query_heads // heads, head_size).transpose(0, 2, 3, 1, 4)
    rows = grouped.reshape(batch, heads, -1, head_size)  # queries of a head: (group, time), time fastest
    last = jnp.tile(positions, (1, query_heads // heads))
    run_tokens = RUN_TOKENS.get(jax.default_backend(), RUN_TOKENS_ELSEWHERE)
    taken = turn_pages(page_tokens, tables.shape[1], run_tokens)
    turn_tokens = taken * page_tokens
    # The last turn is whole too: beyond the table it reads page 0, and no query sees that.
    tables = jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % taken)))

    def turn(index: jax.Array, state: _Softmax) -> _Softmax:
        chosen = jax.lax.dynamic_slice_in_dim(tables, index * taken, taken, axis=1)
        scores = jnp.einsum("bkqh,bnkhs->bkqns", rows, keys[chosen], preferred_element_type=jnp.float32)
        scores = scores.reshape(*scores.shape[:3], turn_tokens) * head_size**-0.5
        seen = index * turn_tokens + jnp.arange(turn_tokens, dtype=jnp.int32) <= last[..., None]
        scores = jnp.where(seen[:, None], scores, MASKED_SCORE)
        highest = jnp.maximum(state.highest, scores.max(-1))
        weights = jnp.exp(scores - highest[..., None])
        kept = jnp.exp(state.highest - highest)
        parts = weights.reshape(*weights.shape[:3], taken, page_tokens).astype(values.dtype)
        new = jnp.einsum("bkqns,bnksh->bkqh", parts, values[chosen], preferred_element_type=jnp.float32)
        return _Softmax(highest, state.total * kept + weights.sum(-1), state.mixed * kept[..., None] + new)

    # Every query sees the first slot of the first run, so no maximum stays at this value.
    highest = jnp.full(rows.shape[:3], MASKED_SCORE, jnp.float32)
    nothing = _Softmax(highest, jnp.zeros_like(highest), jnp.zeros(rows.shape, jnp.float32))
    state = jax.lax.fori_loop(0, jnp.max(positions) // turn_tokens + 1, turn, nothing)
    result = (state.mixed / state.total[..., None]).astype(queries.dtype)
    result = result.reshape(batch, heads, query_heads // heads, time, head_size)
    return result.transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def turn_pages(page_tokens: int, table_pages: int, run_tokens: int) -> int:
    """Return how many pages one turn reads of a table's ``table_pages``: as even shares as can be of few turns.

    A turn reads at most ``run_tokens``, and more than half of that where the table is longer.
    """
    turns = -(-table_pages // max(1, run_tokens // page_tokens))
    return -(-table_pages // turns)
