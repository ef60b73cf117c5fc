"""Score tokens from hidden states, a tile of logits at a time: log-probability, entropy and spread.

The logits of a long batch over a large vocabulary are far larger than the model: 32,768 tokens over 151,936 words are
20 GB. Softmax and its gradient need only a few sums over the vocabulary (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax"), so each tile is computed, summed and discarded; the backward pass recomputes it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollcast.policy.linear import carrier_matmul

# The start of a running maximum: below any logit, and finite so that differences with it are numbers.
_LOWEST = -1e30
# Columns are cut at multiples of this: the width of vector and matrix units.
_LANE = 128


@dataclass(frozen=True, slots=True)
class Tiles:
    """The size of a tile.

    elements: about how many logits (float32) exist at a time at most.
    vocabulary_shards: devices that the vocabulary is divided among; each works on its own columns.
    """

    elements: int = 1 << 24
    vocabulary_shards: int = 1


class _Sums(NamedTuple):
    """Running sums over the vocabulary, f32 [rows, time]; x is logit / temperature."""

    highest: jax.Array  # m, the highest x so far
    total: jax.Array  # sum of exp(x - m)
    spread: jax.Array  # sum of exp(x - m) * (x - m)
    squares: jax.Array  # sum of exp(x - m) * (x - m)^2
    picked: jax.Array  # x of the target


class TokenScores(NamedTuple):
    """The scores of each token, f32 [rows, time]."""

    logprobs: jax.Array  # log-probability of the target, nats
    entropies: jax.Array  # entropy of its distribution, nats
    variances: jax.Array  # variance of log p under its distribution, nats squared; not differentiated


def token_scores(
    hidden: jax.Array, weights: jax.Array, targets: jax.Array, temperature: jax.Array, tiles: Tiles
) -> TokenScores:
    """Score each target under its distribution, softmax(hidden @ weights / temperature).

    hidden: [rows, time, width]. weights: [width, vocabulary], read in hidden's dtype. targets: i32 [rows, time].
    temperature: f32 [rows, time], not differentiated. Logits are float32.
    """
    rows, time, _ = hidden.shape
    vocabulary = weights.shape[1]
    if rows * time * vocabulary <= tiles.elements:
        return _scores_at_once(hidden, weights, targets, temperature)
    shard = vocabulary // tiles.vocabulary_shards
    # Wide tiles of few tokens would read all weights often; a tile of some thousand columns is wide enough.
    length = min(time, max(1, tiles.elements // (rows * min(vocabulary, 32 * _LANE))))
    parts = -(-time // length)
    per_shard = tiles.elements // (rows * length * tiles.vocabulary_shards)
    columns = min(shard, max(_LANE, per_shard // _LANE * _LANE))
    shape = (columns, tiles.vocabulary_shards)
    if parts == 1:
        scores: TokenScores = _tiled_scores(shape, hidden, weights, targets, temperature)
        return scores
    spare = parts * length - time

    def cut(array: jax.Array, fill: float) -> jax.Array:
        widths = ((0, 0), (0, spare)) + ((0, 0),) * (array.ndim - 2)
        padded = jnp.pad(array, widths, constant_values=jnp.asarray(fill, array.dtype))
        return jnp.moveaxis(padded.reshape(rows, parts, length, *array.shape[2:]), 1, 0)

    def part(pieces: tuple[jax.Array, ...]) -> TokenScores:
        scores: TokenScores = _tiled_scores(shape, pieces[0], weights, *pieces[1:])
        return scores

    found = jax.lax.map(part, (cut(hidden, 0.0), cut(targets, 0), cut(temperature, 1.0)))
    return TokenScores(*(jnp.moveaxis(one, 0, 1).reshape(rows, -1)[:, :time] for one in found))


def _scores_at_once(hidden: jax.Array, weights: jax.Array, targets: jax.Array, temperature: jax.Array) -> TokenScores:
    logits = carrier_matmul(jnp.float32, hidden, weights)
    distribution = jax.nn.log_softmax(logits / temperature[..., None], axis=-1)
    picked = jnp.take_along_axis(distribution, targets[..., None], axis=-1)[..., 0]
    p = jnp.exp(distribution)
    entropies = -jnp.sum(p * distribution, axis=-1)
    # The variance is only a measurement: training must not follow its gradient.
    fixed, logs, centre = jax.lax.stop_gradient((p, distribution, entropies))
    variances = jnp.sum(fixed * jnp.square(logs + centre[..., None]), axis=-1)
    return TokenScores(picked, entropies, variances)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiled_scores(
    shape: tuple[int, int], hidden: jax.Array, weights: jax.Array, targets: jax.Array, temperature: jax.Array
) -> TokenScores:
    return _forward(shape, hidden, weights, targets, temperature)[0]


class _Tile(NamedTuple):
    """One tile, which covers columns [shards, columns] of the vocabulary."""

    start: jax.Array  # first column within each shard
    kernel: jax.Array  # [width, shards, columns] in hidden's dtype
    x: jax.Array  # f32 [rows, time, shards, columns], logits / temperature
    fresh: jax.Array  # bool [columns]: not part of the previous tile
    targets: jax.Array  # bool like x: the column is the token's target


def _tile(
    index: Any,
    shape: tuple[int, int],
    hidden: jax.Array,
    weights: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
) -> _Tile:
    """Compute a tile. The last one begins early enough to be whole, so some of its columns are not fresh."""
    columns, shards = shape
    size = weights.shape[1] // shards
    start = jnp.minimum(index * columns, size - columns).astype(jnp.int32)
    by_shard = weights.reshape(weights.shape[0], shards, size)
    kernel = jax.lax.dynamic_slice_in_dim(by_shard, start, columns, axis=2).astype(hidden.dtype)
    logits = jnp.einsum("btw,wsv->btsv", hidden, kernel, preferred_element_type=jnp.float32)
    within = start + jnp.arange(columns, dtype=jnp.int32)
    names = jnp.arange(shards, dtype=jnp.int32)[:, None] * size + within[None, :]
    fresh = within >= index * columns
    chosen = (targets[..., None, None] == names) & fresh
    return _Tile(start, kernel, logits / temperature[..., None, None], fresh, chosen)


def _count(shape: tuple[int, int], weights: jax.Array) -> int:
    columns, shards = shape
    count: int = -(-(weights.shape[1] // shards) // columns)
    return count


def _forward(
    shape: tuple[int, int], hidden: jax.Array, weights: jax.Array, targets: jax.Array, temperature: jax.Array
) -> tuple[TokenScores, Any]:
    def add(index: Any, sums: _Sums) -> _Sums:
        tile = _tile(index, shape, hidden, weights, targets, temperature)
        highest = jnp.maximum(sums.highest, jnp.max(jnp.where(tile.fresh, tile.x, _LOWEST), axis=(-2, -1)))
        above = tile.x - highest[..., None, None]
        shares = jnp.where(tile.fresh, jnp.exp(above), 0.0)
        lower = sums.highest - highest
        kept = jnp.exp(lower)
        return _Sums(
            highest,
            kept * sums.total + jnp.sum(shares, axis=(-2, -1)),
            kept * (sums.spread + sums.total * lower) + jnp.sum(shares * above, axis=(-2, -1)),
            kept * (sums.squares + lower * (2.0 * sums.spread + sums.total * lower))
            + jnp.sum(shares * jnp.square(above), axis=(-2, -1)),
            sums.picked + jnp.sum(jnp.where(tile.targets, tile.x, 0.0), axis=(-2, -1)),
        )

    zeros = jnp.zeros(targets.shape, jnp.float32)
    nothing = _Sums(jnp.full(targets.shape, _LOWEST, jnp.float32), zeros, zeros, zeros, zeros)
    sums: _Sums = jax.lax.fori_loop(0, _count(shape, weights), add, nothing)
    log_total = jnp.log(sums.total)
    mean = sums.spread / sums.total  # mean of x - m
    variances = jnp.maximum(sums.squares / sums.total - jnp.square(mean), 0.0)
    scores = TokenScores(sums.picked - sums.highest - log_total, log_total - mean, variances)
    return scores, (hidden, weights, targets, temperature, sums.highest + log_total, sums.highest + mean)


def _backward(shape: tuple[int, int], residuals: Any, cotangents: TokenScores) -> tuple[Any, ...]:
    """Compute gradients by d log p / dx = [target] - p and d entropy / dx = -p (x - E[x])."""
    hidden, weights, targets, temperature, log_normaliser, mean = residuals
    of_logprob, of_entropy = (one[..., None, None] for one in (cotangents.logprobs, cotangents.entropies))
    columns, shards = shape

    def add(index: Any, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tile = _tile(index, shape, hidden, weights, targets, temperature)
        p = jnp.exp(tile.x - log_normaliser[..., None, None])
        by_x = -p * (of_logprob + of_entropy * (tile.x - mean[..., None, None]))
        by_x = jnp.where(tile.fresh, by_x, 0.0) + jnp.where(tile.targets, of_logprob, 0.0)
        by_logits = (by_x / temperature[..., None, None]).astype(hidden.dtype)
        by_hidden, by_weights = gradients
        by_hidden += jnp.einsum("btsv,wsv->btw", by_logits, tile.kernel, preferred_element_type=jnp.float32)
        here = jnp.einsum("btw,btsv->wsv", hidden, by_logits, preferred_element_type=jnp.float32)
        old = jax.lax.dynamic_slice_in_dim(by_weights, tile.start, columns, axis=2)
        return by_hidden, jax.lax.dynamic_update_slice_in_dim(by_weights, old + here, tile.start, axis=2)

    by_shard = (weights.shape[0], shards, weights.shape[1] // shards)
    nothing = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(by_shard, jnp.float32))
    by_hidden, by_weights = jax.lax.fori_loop(0, _count(shape, weights), add, nothing)
    return by_hidden.astype(hidden.dtype), by_weights.reshape(weights.shape).astype(weights.dtype), None, None


_tiled_scores.defvjp(_forward, _backward)
