"""A decoder-only transformer of the Qwen3 family (Qwen3 Technical Report, section 2) in flax.nnx.

RMSNorm before each block, rotary positions, grouped-query attention with normalised queries and keys, SwiGLU, no
biases. One set of layers serves three forward passes: training (`Decoder.__call__`), `Decoder.prefill` and
`Decoder.decode`.

Weights are read in the configured precision: the learner's float32 masters are rounded on the way in, the rollout's
snapshot already is. Both therefore compute with the same numbers. Norms, softmax and logits are float32 throughout.
The modules here only say what there is and how it is used; `rollcast.policy.params` fills in the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from rollcast.policy.config import ModelConfig

# Score of a masked key: far below any real score, and finite so that rows without a single key stay finite.
MASKED_SCORE = -1e30


class LayerCache(NamedTuple):
    """Keys and values of one layer, [batch, slots, key_value_heads, head_size] each."""

    keys: jax.Array
    values: jax.Array


Cache = tuple[LayerCache, ...]


class RMSNorm(nnx.Module):  # type: ignore[misc]
    """Root-mean-square normalisation over the last axis, in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        self.scale = nnx.Param(jnp.zeros((size,), jnp.float32))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = (wide * jax.lax.rsqrt(mean_square + self.epsilon)).astype(x.dtype)
        return normal * self.scale[...].astype(x.dtype)


class Linear(nnx.Module):  # type: ignore[misc]
    """x @ kernel; kernel is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel[...].astype(x.dtype)


def rotary_angles(positions: jax.Array, head_size: int, base: float) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [batch, time, head_size / 2] f32 of the rotary embedding (RoFormer, section 3.2.2)."""
    exponents = jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size
    angles = positions.astype(jnp.float32)[..., None] * (base**-exponents)[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, rotary: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate halves of each head, [batch, time, heads, head_size]; computed in float32."""
    cosine, sine = rotary[0][:, :, None, :], rotary[1][:, :, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


class Attention(nnx.Module):  # type: ignore[misc]
    """Grouped-query attention with RMS-normalised queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        self.heads = (config.key_value_heads, config.query_heads // config.key_value_heads, config.head_size)
        inner, inner_kv = config.query_heads * config.head_size, config.key_value_heads * config.head_size
        self.query = Linear(config.width, inner)
        self.key = Linear(config.width, inner_kv)
        self.value = Linear(config.width, inner_kv)
        self.output = Linear(inner, config.width)
        self.query_norm = RMSNorm(config.head_size, config.rms_epsilon)
        self.key_norm = RMSNorm(config.head_size, config.rms_epsilon)

    def __call__(
        self,
        x: jax.Array,
        rotary: tuple[jax.Array, jax.Array],
        allowed: jax.Array,
        past: LayerCache | None,
        slot: jax.Array | int,
    ) -> tuple[jax.Array, LayerCache]:
        """Attend from x [batch, time, width] to itself, or to ``past`` with x's keys written at ``slot``.

        allowed: bool [batch, time, slots], which keys each query may see.
        """
        batch, time, _ = x.shape
        key_value_heads, queries_per_key, head_size = self.heads
        queries = self.query(x).reshape(batch, time, key_value_heads * queries_per_key, head_size)
        keys = self.key(x).reshape(batch, time, key_value_heads, head_size)
        values = self.value(x).reshape(batch, time, key_value_heads, head_size)
        queries = rotate(self.query_norm(queries), rotary)
        keys = rotate(self.key_norm(keys), rotary)
        if past is not None:
            keys = jax.lax.dynamic_update_slice_in_dim(past.keys, keys, slot, axis=1)
            values = jax.lax.dynamic_update_slice_in_dim(past.values, values, slot, axis=1)
        grouped = queries.reshape(batch, time, key_value_heads, queries_per_key, head_size)
        scores = jnp.einsum("btkgh,bskh->bkgts", grouped, keys, preferred_element_type=jnp.float32)
        scores = jnp.where(allowed[:, None, None], scores * head_size**-0.5, MASKED_SCORE)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        mixed = jnp.einsum("bkgts,bskh->btkgh", weights, values).reshape(batch, time, -1)
        return self.output(mixed), LayerCache(keys, values)


class FeedForward(nnx.Module):  # type: ignore[misc]
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        self.gate = Linear(config.width, config.feed_forward_width)
        self.up = Linear(config.width, config.feed_forward_width)
        self.down = Linear(config.feed_forward_width, config.width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Block(nnx.Module):  # type: ignore[misc]
    """Attention and feed-forward, each on a normalised copy and added back."""

    def __init__(self, config: ModelConfig) -> None:
        self.attention_norm = RMSNorm(config.width, config.rms_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.width, config.rms_epsilon)
        self.feed_forward = FeedForward(config)

    def __call__(
        self,
        x: jax.Array,
        rotary: tuple[jax.Array, jax.Array],
        allowed: jax.Array,
        past: LayerCache | None,
        slot: jax.Array | int,
    ) -> tuple[jax.Array, LayerCache]:
        mixed, cache = self.attention(self.attention_norm(x), rotary, allowed, past, slot)
        x = x + mixed
        return x + self.feed_forward(self.feed_forward_norm(x)), cache


class Decoder(nnx.Module):  # type: ignore[misc]
    """The policy: token ids in, float32 logits out."""

    def __init__(self, config: ModelConfig) -> None:
        self.head_size = config.head_size
        self.rope_base = config.rope_base
        self.compute_dtype = jnp.dtype(config.precision)
        self.embedding = nnx.Param(jnp.zeros((config.vocabulary_size, config.width), jnp.float32))
        self.layers = nnx.List([Block(config) for _ in range(config.layers)])
        self.final_norm = RMSNorm(config.width, config.rms_epsilon)
        self.head = None if config.tied_embeddings else Linear(config.width, config.vocabulary_size)

    def __call__(self, tokens: jax.Array, positions: jax.Array, valid: jax.Array) -> jax.Array:
        """Logits f32 [batch, time, vocabulary] of the token after each token.

        tokens: i32 [batch, time], padded on either side. positions: i32 [batch, time], index in the sequence without
        padding. valid: bool [batch, time], False on padding (whose logits mean nothing).
        """
        hidden, _ = self._blocks(tokens, positions, _causal(valid), None, 0)
        return self._logits(hidden)

    def prefill(
        self, tokens: jax.Array, positions: jax.Array, valid: jax.Array, spare_slots: int
    ) -> tuple[jax.Array, Cache]:
        """Read left-padded contexts [batch, time]; leave ``spare_slots`` free cache slots behind them.

        Returns logits f32 [batch, vocabulary] of each row's next token, and the cache of time + spare_slots slots.
        """
        hidden, cache = self._blocks(tokens, positions, _causal(valid), None, 0)
        spare = ((0, 0), (0, spare_slots), (0, 0), (0, 0))
        padded = tuple(LayerCache(jnp.pad(layer.keys, spare), jnp.pad(layer.values, spare)) for layer in cache)
        return self._logits(hidden[:, -1]), padded

    def decode(
        self, tokens: jax.Array, positions: jax.Array, visible: jax.Array, cache: Cache, slot: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """One token a row: tokens, positions i32 [batch]; visible bool [batch, slots]; written at cache ``slot``.

        Returns logits f32 [batch, vocabulary] of the next token, and the cache with the new keys and values.
        """
        hidden, cache = self._blocks(tokens[:, None], positions[:, None], visible[:, None, :], cache, slot)
        return self._logits(hidden[:, 0]), cache

    def _blocks(
        self, tokens: jax.Array, positions: jax.Array, allowed: jax.Array, past: Cache | None, slot: jax.Array | int
    ) -> tuple[jax.Array, Cache]:
        x = self.embedding[...].astype(self.compute_dtype)[tokens]
        rotary = rotary_angles(positions, self.head_size, self.rope_base)
        caches = []
        for index, block in enumerate(self.layers):
            x, cache = block(x, rotary, allowed, None if past is None else past[index], slot)
            caches.append(cache)
        return self.final_norm(x), tuple(caches)

    def _logits(self, hidden: jax.Array) -> jax.Array:
        weights: Any = self.embedding[...].T if self.head is None else self.head.kernel[...]
        return jnp.matmul(hidden, weights.astype(hidden.dtype), preferred_element_type=jnp.float32)


def _causal(valid: jax.Array) -> jax.Array:
    time = valid.shape[1]
    return jnp.tril(jnp.ones((time, time), bool))[None] & valid[:, None, :]
