"""Score tokens from hidden states, a tile of logits at a time: log-probability, entropy, spread and margin.

The logits of a long batch over a large vocabulary are far larger than the model: 32,768 tokens over 151,936 words are
20 GB. Softmax and its gradient need only a few sums over the vocabulary (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax"), so each tile is computed, summed and discarded; the backward pass recomputes it.

The margin of a token says how far it is from the one that its seed samples (rollcast.policy.noise): max over v of
(logit_v / temperature + g_v), minus that of the token. It is 0 for what the sampler chose from the same logits. The
noise of a tile is computed with it, so that noise over the whole vocabulary never exists either.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rollcast.policy.noise import threefry2x32, uniforms
from rollcast.policy.products.linear import carried, carrier_matmul

# The start of a running maximum: below any logit, and finite so that differences with it are numbers.
_LOWEST = -1e30
# Columns are cut at multiples of this: the width of vector and matrix units.
_LANE = 128


@dataclass(frozen=True, slots=True)
class Tiles:
    """The size of a tile, and how the output head is divided among devices.

    elements: about how many logits (float32) exist at a time at most, on each device.
    vocabulary_shards: devices that the vocabulary is divided among; each works on its own columns.
    mesh: the devices, with axes as in learner.training.mesh: rows of tokens are divided among the first two, the head's
    width is divided among the second and its vocabulary among the third. The head is gathered a tile at a time, in the
    carrier's dtype, and its gradient is added up and divided again a tile at a time. None: all are on one device.
    """

    elements: int = 1 << 24
    vocabulary_shards: int = 1
    mesh: Mesh | None = None

    def shape(self, tokens: int, vocabulary: int) -> _Shape:
        """Return the shape of the tiles for this many tokens on all devices together."""
        # A vocabulary that the shards do not divide evenly lies whole on each of them.
        shards = self.vocabulary_shards if vocabulary % self.vocabulary_shards == 0 else 1
        if self.mesh is not None:
            tokens //= math.prod(self.mesh.devices.shape[:2])
        columns = max(_LANE, self.elements // max(1, tokens) // _LANE * _LANE)
        return _Shape(min(columns, vocabulary // shards), shards, self.mesh)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Tiles [tokens, shards, columns] of logits, and the mesh that the head is divided among."""

    columns: int
    shards: int
    mesh: Mesh | None

    def gathered(self, kernel: jax.Array) -> jax.Array:
        """Place a tile's weights [width, shards, columns] where tokens are multiplied with them: with whole columns."""
        return self._placed(kernel, by_width=False)

    def divided(self, gradient: jax.Array) -> jax.Array:
        """Place weights' gradients [width, shards, columns] where the weights lie."""
        return self._placed(gradient, by_width=True)

    def _placed(self, array: jax.Array, *, by_width: bool) -> jax.Array:
        if self.mesh is None:
            return array
        _, fsdp, tensor = self.mesh.axis_names
        spec = PartitionSpec(fsdp if by_width else None, tensor if self.shards > 1 else None, None)
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))


class _Sums(NamedTuple):
    """Running sums over the columns of each shard, f32 [rows, time, shards]; x is logit / temperature."""

    highest: jax.Array  # m, the highest x so far
    total: jax.Array  # sum of exp(x - m)
    spread: jax.Array  # sum of exp(x - m) * (x - m)
    squares: jax.Array  # sum of exp(x - m) * (x - m)^2
    picked: jax.Array  # x of the target

    def above(self, highest: jax.Array) -> _Sums:
        """Return the sums in terms of another, higher maximum, which has their shape or one shard."""
        lower = self.highest - highest
        kept = jnp.exp(lower)
        return _Sums(
            jnp.broadcast_to(highest, self.highest.shape),
            kept * self.total,
            kept * (self.spread + self.total * lower),
            kept * (self.squares + lower * (2.0 * self.spread + self.total * lower)),
            self.picked,
        )


class NoiseKeys(NamedTuple):
    """What the noise of each target is keyed by."""

    seeds: jax.Array  # u32 [rows, time, 2], the words of the slot's seed (see rollcast.policy.noise.seed_words)
    positions: jax.Array  # i32 [rows, time], index of the target in its sequence


class TokenScores(NamedTuple):
    """The scores of each token, f32 [rows, time]."""

    logprobs: jax.Array  # log-probability of the target, nats
    entropies: jax.Array  # entropy of its distribution, nats
    variances: jax.Array  # variance of log p under its distribution, nats squared; not differentiated
    margins: jax.Array  # how far the target is from the token that its seed samples, nats; not differentiated


def token_scores(
    hidden: jax.Array,
    weights: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    tiles: Tiles,
    noise: NoiseKeys | None = None,
) -> TokenScores:
    """Score each target under its distribution, softmax(hidden @ weights / temperature).

    hidden: [rows, time, width]. weights: [width, vocabulary], read in hidden's dtype. targets: i32 [rows, time].
    temperature: f32 [rows, time], not differentiated. noise: None gives margins of 0. Logits are float32.
    """
    tokens, vocabulary = targets.size, weights.shape[1]
    if tiles.mesh is None and tokens * vocabulary <= tiles.elements:
        return _scores_at_once(hidden, weights, targets, temperature, noise)
    scores: TokenScores = _tiled_scores(tiles.shape(tokens, vocabulary), hidden, weights, targets, temperature, noise)
    return scores


def gumbel(seeds: jax.Array, positions: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the noise f32 of rollcast.policy.noise; seeds have an axis of two words more than the rest.

    positions and tokens must broadcast against each other and against seeds without that axis.
    """
    counters = positions.astype(jnp.uint32), tokens.astype(jnp.uint32)
    bits, _ = threefry2x32(seeds[..., 0], seeds[..., 1], *counters)
    return -jnp.log(-jnp.log(uniforms(bits)))


def _scores_at_once(
    hidden: jax.Array, weights: jax.Array, targets: jax.Array, temperature: jax.Array, noise: NoiseKeys | None
) -> TokenScores:
    x = carrier_matmul(jnp.float32, hidden, weights) / temperature[..., None]
    distribution = jax.nn.log_softmax(x, axis=-1)
    picked = jnp.take_along_axis(distribution, targets[..., None], axis=-1)[..., 0]
    p = jnp.exp(distribution)
    entropies = -jnp.sum(p * distribution, axis=-1)
    # The variance is only a measurement: training must not follow its gradient.
    fixed, logs, centre = jax.lax.stop_gradient((p, distribution, entropies))
    variances = jnp.sum(fixed * jnp.square(logs + centre[..., None]), axis=-1)
    margins = jnp.zeros_like(picked)
    if noise is not None:
        names = jnp.arange(x.shape[-1], dtype=jnp.int32)
        noisy = jax.lax.stop_gradient(x) + gumbel(noise.seeds[..., None, :], noise.positions[..., None], names)
        margins = jnp.max(noisy, axis=-1) - jnp.take_along_axis(noisy, targets[..., None], axis=-1)[..., 0]
    return TokenScores(picked, entropies, variances, jax.lax.stop_gradient(margins))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiled_scores(
    shape: _Shape,
    hidden: jax.Array,
    weights: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    noise: NoiseKeys | None,
) -> TokenScores:
    return _forward(shape, hidden, weights, targets, temperature, noise)[0]


def _saving_forward(
    shape: _Shape, hidden: Any, weights: Any, targets: Any, temperature: Any, noise: Any
) -> tuple[TokenScores, _Saved]:
    """Take operands with whether they are differentiated."""
    values = hidden.value, weights.value, targets.value, temperature.value
    keys = None if noise is None else NoiseKeys(noise.seeds.value, noise.positions.value)
    scores, normalisers = _forward(shape, *values, keys)
    return scores, _Saved(*values, *normalisers, () if weights.perturbed else None)


class _Saved(NamedTuple):
    """What the backward pass needs."""

    hidden: jax.Array
    weights: jax.Array
    targets: jax.Array
    temperature: jax.Array
    log_normaliser: jax.Array  # f32 [rows, time]
    mean: jax.Array  # f32 [rows, time], of x
    trains_weights: tuple[()] | None  # None: the head is frozen, and its gradient is not computed


class _Noisy(NamedTuple):
    """Logits with noise over the columns of each shard so far, f32 [rows, time, shards]."""

    highest: jax.Array
    picked: jax.Array  # that of the target

    def with_tile(self, tile: _Tile, noise: NoiseKeys) -> _Noisy:
        """Return these values with a tile's columns added."""
        keys = noise.seeds[..., None, None, :], noise.positions[..., None, None]
        noisy = tile.x + gumbel(*keys, tile.names)
        return _Noisy(
            jnp.maximum(self.highest, jnp.max(jnp.where(tile.fresh, noisy, _LOWEST), axis=-1)),
            self.picked + jnp.sum(jnp.where(tile.targets, noisy, 0.0), axis=-1),
        )

    @property
    def margins(self) -> jax.Array:
        """Return the margins over all shards, f32 [rows, time]."""
        return jnp.max(self.highest, axis=-1) - jnp.sum(self.picked, axis=-1)


class _Tile(NamedTuple):
    """One tile, which covers columns [shards, columns] of the vocabulary."""

    start: jax.Array  # first column within each shard
    kernel: jax.Array  # [width, shards, columns] in hidden's dtype
    names: jax.Array  # i32 [shards, columns], the columns' token ids
    x: jax.Array  # f32 [rows, time, shards, columns], logits / temperature
    fresh: jax.Array  # bool [columns]: not part of the previous tile
    targets: jax.Array  # bool like x: the column is the token's target


def _tile(
    index: Any,
    shape: _Shape,
    hidden: jax.Array,
    weights: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
) -> _Tile:
    """Compute a tile. The last one begins early enough to be whole, so some of its columns are not fresh."""
    columns, shards = shape.columns, shape.shards
    size = weights.shape[1] // shards
    start = jnp.minimum(index * columns, size - columns).astype(jnp.int32)
    by_shard = weights.reshape(weights.shape[0], shards, size)
    kernel = shape.gathered(carried(jax.lax.dynamic_slice_in_dim(by_shard, start, columns, axis=2), hidden.dtype))
    logits = jnp.einsum("btw,wsv->btsv", hidden, kernel, preferred_element_type=jnp.float32)
    within = start + jnp.arange(columns, dtype=jnp.int32)
    names = jnp.arange(shards, dtype=jnp.int32)[:, None] * size + within[None, :]
    fresh = within >= index * columns
    chosen = (targets[..., None, None] == names) & fresh
    return _Tile(start, kernel, names, logits / temperature[..., None, None], fresh, chosen)


def _count(shape: _Shape, weights: jax.Array) -> int:
    count: int = -(-(weights.shape[1] // shape.shards) // shape.columns)
    return count


def _forward(
    shape: _Shape,
    hidden: jax.Array,
    weights: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    noise: NoiseKeys | None,
) -> tuple[TokenScores, tuple[jax.Array, jax.Array]]:
    """Return the scores, and the logarithm of the normaliser and the mean of x, f32 [rows, time]."""

    def add(index: Any, carry: tuple[_Sums, _Noisy | None]) -> tuple[_Sums, _Noisy | None]:
        sums, noisy = carry
        tile = _tile(index, shape, hidden, weights, targets, temperature)
        if noisy is not None and noise is not None:
            noisy = noisy.with_tile(tile, noise)
        old = sums.above(jnp.maximum(sums.highest, jnp.max(jnp.where(tile.fresh, tile.x, _LOWEST), axis=-1)))
        above = tile.x - old.highest[..., None]
        shares = jnp.where(tile.fresh, jnp.exp(above), 0.0)
        added = _Sums(
            old.highest,
            old.total + jnp.sum(shares, axis=-1),
            old.spread + jnp.sum(shares * above, axis=-1),
            old.squares + jnp.sum(shares * jnp.square(above), axis=-1),
            old.picked + jnp.sum(jnp.where(tile.targets, tile.x, 0.0), axis=-1),
        )
        return added, noisy

    zeros = jnp.zeros((*targets.shape, shape.shards), jnp.float32)
    nothing = _Sums(jnp.full(zeros.shape, _LOWEST, jnp.float32), zeros, zeros, zeros, zeros)
    none_noisy = None if noise is None else _Noisy(nothing.highest, zeros)
    of_shards, noisy = jax.lax.fori_loop(0, _count(shape, weights), add, (nothing, none_noisy))
    highest = jnp.max(of_shards.highest, axis=-1, keepdims=True)
    _, *added = (jnp.sum(one, axis=-1) for one in of_shards.above(highest))
    sums = _Sums(highest[..., 0], *added)
    log_total = jnp.log(sums.total)
    mean = sums.spread / sums.total  # mean of x - m
    variances = jnp.maximum(sums.squares / sums.total - jnp.square(mean), 0.0)
    margins = jnp.zeros_like(mean) if noisy is None else noisy.margins
    scores = TokenScores(sums.picked - sums.highest - log_total, log_total - mean, variances, margins)
    return scores, (sums.highest + log_total, sums.highest + mean)


def _backward(shape: _Shape, saved: _Saved, cotangents: TokenScores) -> tuple[Any, ...]:
    """Compute gradients by d log p / dx = [target] - p and d entropy / dx = -p (x - E[x])."""
    hidden, weights, targets, temperature, log_normaliser, mean, trains_weights = saved
    of_logprob, of_entropy = (
        jnp.zeros((1, 1, 1, 1), jnp.float32) if isinstance(one, SymbolicZero) else one[..., None, None]
        for one in (cotangents.logprobs, cotangents.entropies)
    )

    def add(index: Any, gradients: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array | None]:
        tile = _tile(index, shape, hidden, weights, targets, temperature)
        p = jnp.exp(tile.x - log_normaliser[..., None, None])
        by_x = -p * (of_logprob + of_entropy * (tile.x - mean[..., None, None]))
        by_x = jnp.where(tile.fresh, by_x, 0.0) + jnp.where(tile.targets, of_logprob, 0.0)
        by_logits = (by_x / temperature[..., None, None]).astype(hidden.dtype)
        by_hidden, by_weights = gradients
        by_hidden += jnp.einsum("btsv,wsv->btsw", by_logits, tile.kernel, preferred_element_type=jnp.float32)
        if by_weights is None:
            return by_hidden, None
        here = jnp.einsum("btw,btsv->wsv", hidden, by_logits, preferred_element_type=jnp.float32)
        old = jax.lax.dynamic_slice_in_dim(by_weights, tile.start, shape.columns, axis=2)
        new = old + shape.divided(here)
        return by_hidden, shape.divided(jax.lax.dynamic_update_slice_in_dim(by_weights, new, tile.start, axis=2))

    rows, time, width = hidden.shape
    # Each shard adds up its own columns' part of the gradient of the hidden states; the parts meet once, at the end.
    by_shards = jnp.zeros((rows, time, shape.shards, width), jnp.float32)
    by_weights = None
    if trains_weights is not None:
        by_weights = shape.divided(jnp.zeros((width, shape.shards, weights.shape[1] // shape.shards), jnp.float32))
    by_shards, by_weights = jax.lax.fori_loop(0, _count(shape, weights), add, (by_shards, by_weights))
    by_hidden = jnp.sum(by_shards, axis=2).astype(hidden.dtype)
    own = None if by_weights is None else by_weights.reshape(weights.shape).astype(weights.dtype)
    return by_hidden, own, None, None, None


_tiled_scores.defvjp(_saving_forward, _backward, symbolic_zeros=True)
