"""Keep keys and values in pages: write tokens into them, and attend to them through block tables.

One pool of pages serves all sequences (Kwon et al. 2023, section 4.2). A sequence's block table lists the pages that
hold its tokens in order, so that sequences with the same beginning share its pages. Page 0 belongs to no sequence:
writes that must have no effect, such as those of padding, go there.

New tokens' keys and values are written first, layer by layer, and then attended to like all before them, through an
online softmax (Milakov and Gimelshein 2018), a run of pages at a time and only as far as the longest sequence reaches.
A run that a sequence does not reach changes nothing for it, not even a rounding: its result does not depend on the
lengths of others. Each layer has its own arrays, which are written before they are read: in any other order the
compiler copies all pages at every step.

On a mesh (rollcast.policy.mesh) each device has the pages of its own heads and attends with them alone; where devices
outnumber the key heads, each of these is stored several times, once for each device whose query heads read it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rollcast.policy.config import ModelConfig
from rollcast.policy.experts.layer import Routing
from rollcast.policy.kernels.dense import MASKED_SCORE
from rollcast.policy.mesh import TENSOR
from rollcast.policy.model import Decoder, Hidden, Run
from rollcast.policy.shapes import head_copies

# How many tokens of a sequence one turn of the attention loop reads. On a CPU the copied pages should fit into its
# cache; an accelerator is faster with few turns.
RUN_TOKENS = {"cpu": 64}
RUN_TOKENS_ELSEWHERE = 1024


class Pages(NamedTuple):
    """All pages, one array per layer, in the model's carrier dtype.

    Keys are [pages, heads, head_size, page_tokens], so that scores are sums of whole vectors of tokens. Values are
    [pages, heads, page_tokens, head_size]. The heads are those of keys and values, as often as they are stored.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]

    @property
    def page_tokens(self) -> int:
        """Return the number of tokens that one page holds."""
        return int(self.values[0].shape[2])


def empty_pages(config: ModelConfig, pages: int, page_tokens: int, mesh: Mesh | None = None) -> Pages:
    """Return a pool of ``pages`` empty pages, including page 0, which belongs to no sequence."""
    shapes, where = page_shapes(config, pages, page_tokens, mesh)
    made: Pages = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=where), shapes)
    return made


def page_shapes(
    config: ModelConfig, pages: int, page_tokens: int, mesh: Mesh | None = None
) -> tuple[Pages, NamedSharding | None]:
    """Return shape and dtype of every array of a pool, and where each of them lies; None: on the default device."""
    copies = 1 if mesh is None else _head_copies(config.query_heads, config.key_value_heads, mesh)
    start, dtype = (pages, config.key_value_heads * (copies or 1)), jnp.dtype(config.carrier_dtype)
    keys = jax.ShapeDtypeStruct((*start, config.head_size, page_tokens), dtype)
    values = jax.ShapeDtypeStruct((*start, page_tokens, config.head_size), dtype)
    where = None if mesh is None else NamedSharding(mesh, PartitionSpec(None, TENSOR) if copies else PartitionSpec())
    return Pages((keys,) * config.layers, (values,) * config.layers), where


def _head_copies(query_heads: int, key_value_heads: int, mesh: Mesh) -> int:
    """Return how often each head of keys and values is stored; 0: every device has all heads once."""
    return head_copies(query_heads, key_value_heads, mesh.shape[TENSOR])


def page_bytes(config: ModelConfig, page_tokens: int) -> int:
    """Return the memory of one page over all layers on one device, in bytes."""
    itemsize = jnp.dtype(config.carrier_dtype).itemsize
    return 2 * config.layers * config.key_value_heads * config.head_size * page_tokens * itemsize


def copy_pages(pages: Pages, sources: Any, targets: Any) -> Pages:
    """Copy whole pages from ``sources`` to ``targets``, i32 [copies] each; an unused place copies page 0 to page 0."""
    copied: Pages = jax.tree.map(lambda layer: layer.at[targets].set(layer[sources]), pages)
    return copied


def extend(
    model: Decoder,
    pages: Pages,
    tables: jax.Array,
    tokens: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
    mesh: Mesh | None = None,
) -> tuple[Hidden, Pages]:
    """Read tokens i32 [batch, time] that follow the ``starts`` i32 [batch] tokens that each sequence has in its pages.

    tables: i32 [batch, pages of a sequence]. counts: i32 [batch], how many tokens of each row are valid; the rest is
    padding, and its keys and values are written to page 0. Returns hidden states [batch, time, width] and with
    experts the routes, both meaningless for padding, and the pages. mesh: the devices; None: one.
    """
    time, size = tokens.shape[1], pages.page_tokens
    steps = jnp.arange(time, dtype=jnp.int32)[None, :]
    positions = starts[:, None] + steps
    slots = jnp.clip(positions // size, 0, tables.shape[1] - 1)
    rows = jnp.where(steps < counts[:, None], jnp.take_along_axis(tables, slots, axis=1), 0).reshape(-1)
    places = (positions % size).reshape(-1)
    written: list[tuple[jax.Array, jax.Array]] = []

    write_and_attend = _write_and_attend if mesh is None else functools.partial(_by_head, mesh)

    def attend(layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        heads = (queries, keys, values, pages.keys[layer], pages.values[layer])
        mixed, *now = write_and_attend(heads, (rows, places, tables, positions))
        written.append((now[0], now[1]))
        return mixed

    def around(run: Run) -> Run:
        if mesh is None:
            return run
        whole = NamedSharding(mesh, PartitionSpec())
        return lambda x: run(jax.lax.with_sharding_constraint(x, whole))

    routing = Routing(mesh=mesh, gathers_experts=False)
    hidden = model(tokens, positions, attend, around, routing=routing)
    return hidden, Pages(tuple(keys for keys, _ in written), tuple(values for _, values in written))


def _write_and_attend(heads: tuple[jax.Array, ...], where: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Write one layer's new keys and values into its pages, and attend to them.

    heads: new queries, keys and values, and the layer's pages of keys and of values. where: the page of each new token,
    its place in there, and the block tables and positions of attend_to_pages. Returns what attention.Attend does, and
    the changed pages.
    """
    queries, new_keys, new_values, keys, values = heads
    rows, places, tables, positions = where
    shape = (-1, *new_keys.shape[2:])
    keys = keys.at[rows, :, :, places].set(new_keys.reshape(shape))
    values = values.at[rows, :, places].set(new_values.reshape(shape))
    return attend_to_pages(queries, keys, values, tables, positions), keys, values


def _by_head(mesh: Mesh, heads: tuple[jax.Array, ...], where: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Call _write_and_attend on every device with its own heads, without any exchange."""
    queries, keys, values, *pages = heads
    copies = _head_copies(queries.shape[2], keys.shape[2], mesh)
    keys, values = (jnp.repeat(array, copies or 1, axis=2) for array in (keys, values))
    by_head = by_page_head = whole = PartitionSpec()
    if copies:
        by_head, by_page_head = PartitionSpec(None, None, TENSOR), PartitionSpec(None, TENSOR)
    found: tuple[jax.Array, ...] = jax.shard_map(
        _write_and_attend,
        mesh=mesh,
        in_specs=((by_head,) * 3 + (by_page_head,) * 2, (whole,) * 4),
        out_specs=(by_head, by_page_head, by_page_head),
        check_vma=False,
    )((queries, keys, values, *pages), where)
    return found


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
