"""Define a decoder-only transformer in flax.nnx: Qwen3 (Qwen3 Technical Report, section 2), Qwen2.5 and Llama 3.

It has RMSNorm before each block, rotary positions, grouped-query attention and SwiGLU, or a mixture of experts that are
SwiGLUs (Qwen3-MoE). Queries and keys are normalised (Qwen3), or have biases as the values do (Qwen2.5), or neither
(Llama 3). One forward pass serves training, prompts and
decoding: they differ in the `Attend` that they pass.

Weights are read in the configured precision: the learner's float32 masters are rounded when they are read, the
rollout's snapshot is rounded already. Both therefore compute with the same numbers. Norms, softmax and logits are
float32 throughout. The modules here only define tensors and how they are used; `rollcast.policy.params` fills them in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rollcast.policy.attention import Attend
from rollcast.policy.config import ModelConfig, YarnScaling
from rollcast.policy.experts.layer import Experts, Routed, Routing
from rollcast.policy.products.linear import Linear, carried, carried_to, carrier_matmul

#: Computes a block: takes the residual stream [batch, time, width]; returns the next one, and what experts report.
Run = Callable[[jax.Array], tuple[jax.Array, Routed | None]]
#: Takes such a function and returns one that computes the same values.
Around = Callable[[Run], Run]
#: Takes the embedding [vocabulary, width], tokens i32 [batch, time] and the carrier's dtype; see looked_up.
LookUp = Callable[[jax.Array, jax.Array, Any], jax.Array]

ROUTED_BY_ITSELF = Routing()


def looked_up(embedding: jax.Array, tokens: jax.Array, dtype: Any) -> jax.Array:
    """Return the rows [batch, time, width] of the tokens in ``dtype``.

    They are rounded after the lookup, so that the gradient of a frequent token's row is added up in float32.
    """
    return carried(embedding[tokens], dtype)


class RMSNorm(nnx.Module):  # type: ignore[misc]
    """Normalisation by the root mean square over the last axis, in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        self.scale = nnx.Param(jnp.zeros((size,), jnp.float32))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = (wide * jax.lax.rsqrt(mean_square + self.epsilon)).astype(x.dtype)
        return normal * carried_to(self.scale[...], normal)


def rotary_frequencies(config: ModelConfig) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return radians per position f32 [head_size / 2] (RoFormer, section 3.2.2), stretched as configured.

    NumPy computes them, because a float32 power on a device may be off by several units in the last place, and long
    positions multiply that error.
    """
    dimensions = np.arange(config.head_size // 2)
    frequencies = config.rope_base ** -(2 * dimensions / config.head_size)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies.astype(np.float32)
    # ``kept`` is where a wavelength lies between the two borders: 1 leaves it as it is, 0 stretches it by factor.
    if scaling.kind == "llama3":
        turns = scaling.original_context * frequencies / (2.0 * np.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    else:
        first, last = _yarn_borders(config.rope_base, config.head_size, scaling)
        kept = 1.0 - np.clip((dimensions - first) / (last - first), 0.0, 1.0)
    return (frequencies * (kept + (1.0 - kept) / scaling.factor)).astype(np.float32)


def _yarn_borders(base: float, head_size: int, scaling: YarnScaling) -> tuple[float, float]:
    """Return the last dimension of unchanged wavelengths and the first of wavelengths stretched by the whole factor."""
    first, last = (
        head_size * math.log(scaling.original_context / (2.0 * math.pi * turns)) / (2.0 * math.log(base))
        for turns in (scaling.turns_max, scaling.turns_min)
    )
    if scaling.whole_dimensions:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_size - 1)
    return first, last if last > first else first + 0.001  # as transformers does; a step instead of a slope


def rotary_angles(positions: jax.Array, config: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """Return cosines and sines f32 [batch, time, head_size / 2] of positions [batch, time]; see rotary_frequencies.

    With YaRN they are multiplied by its attention factor, so that scores grow by its square.
    """
    angles = positions.astype(jnp.float32)[..., None] * jnp.asarray(rotary_frequencies(config))[None, None, :]
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "yarn":
        return cosine, sine
    factor = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1.0
    return cosine * factor, sine * factor


def rotate(x: jax.Array, rotary: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate the halves of each head of x [batch, time, heads, head_size], in float32; the result has x's dtype."""
    cosine, sine = rotary[0][:, :, None, :], rotary[1][:, :, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


class Attention(nnx.Module):  # type: ignore[misc]
    """Grouped-query attention, with RMS-normalised queries and keys or with biases if so configured."""

    def __init__(self, config: ModelConfig) -> None:
        self.heads = (config.query_heads, config.key_value_heads, config.head_size)
        inner, inner_kv = config.query_heads * config.head_size, config.key_value_heads * config.head_size
        self.query = Linear(config.width, inner, bias=config.attention_bias)
        self.key = Linear(config.width, inner_kv, bias=config.attention_bias)
        self.value = Linear(config.width, inner_kv, bias=config.attention_bias)
        self.output = Linear(inner, config.width)
        self.query_norm = RMSNorm(config.head_size, config.rms_epsilon) if config.qk_norm else None
        self.key_norm = RMSNorm(config.head_size, config.rms_epsilon) if config.qk_norm else None

    def __call__(self, x: jax.Array, rotary: tuple[jax.Array, jax.Array], layer: Any, attend: Attend) -> jax.Array:
        """Return the attention output like x [batch, time, width]; rotary: see rotary_angles."""
        batch, time, _ = x.shape
        query_heads, key_value_heads, head_size = self.heads
        queries = self.query(x).reshape(batch, time, query_heads, head_size)
        keys = self.key(x).reshape(batch, time, key_value_heads, head_size)
        values = self.value(x).reshape(batch, time, key_value_heads, head_size)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        mixed = attend(layer, rotate(queries, rotary), rotate(keys, rotary), values)
        return self.output(mixed.reshape(batch, time, -1))


class FeedForward(nnx.Module):  # type: ignore[misc]
    """The feed-forward layer, a SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        self.gate = Linear(config.width, config.feed_forward_width)
        self.up = Linear(config.width, config.feed_forward_width)
        self.down = Linear(config.feed_forward_width, config.width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Block(nnx.Module):  # type: ignore[misc]
    """A transformer block: attention and feed-forward, each on a normalised copy and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        self.attention_norm = RMSNorm(config.width, config.rms_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.width, config.rms_epsilon)
        self.feed_forward = Experts(config) if config.experts else FeedForward(config)

    def __call__(
        self, x: jax.Array, rotary: tuple[jax.Array, jax.Array], layer: Any, attend: Attend, routing: Routing
    ) -> tuple[jax.Array, Routed | None]:
        """Return the residual stream after this block, and what its experts report; None without experts.

        ``routing.routes``, if given, are this layer's alone.
        """
        x = x + self.attention(self.attention_norm(x), rotary, layer, attend)
        normal = self.feed_forward_norm(x)
        if isinstance(self.feed_forward, FeedForward):
            return x + self.feed_forward(normal), None
        mixed, routed = self.feed_forward(normal, routing)
        return x + mixed, routed


class Hidden(NamedTuple):
    """What a forward pass gives."""

    states: jax.Array  # [batch, time, width] after the last norm
    routed: Routed | None
    """With experts, of all layers: the routes used, [batch, time, layers, experts_per_token], and the loads, each with
    an axis of layers in front. None without experts."""


class Decoder(nnx.Module):  # type: ignore[misc]
    """The policy, which turns token ids into hidden states; `logits` turns those into float32 logits.

    With ``scanned`` its layers are one block whose tensors are stacked (rollcast.policy.stacking): a compiled program
    contains the block once, in a loop. Without it each layer is a block, for programs that keep something of their own
    for every layer.
    """

    def __init__(self, config: ModelConfig, *, scanned: bool = False) -> None:
        self.config = config
        self.compute_dtype = jnp.dtype(config.carrier_dtype)
        self.embedding = nnx.Param(jnp.zeros((config.vocabulary_size, config.width), jnp.float32))
        self.layers = Block(config) if scanned else nnx.List([Block(config) for _ in range(config.layers)])
        self.final_norm = RMSNorm(config.width, config.rms_epsilon)
        self.head = None if config.tied_embeddings else Linear(config.width, config.vocabulary_size)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        attend: Attend,
        around: Around = lambda run: run,
        look_up: LookUp = looked_up,
        routing: Routing = ROUTED_BY_ITSELF,
    ) -> Hidden:
        """Run the layers.

        tokens: i32 [batch, time]. positions: i32 [batch, time], index in the sequence without padding. attend: see
        rollcast.policy.attention; tokens that it masks may be anything. around: wraps each block's computation on the
        residual stream, for example to recompute in the backward pass instead of keeping activations.
        look_up: see LookUp. routing: experts to use instead of the routers' choice, and which tokens count for the
        loads; see Routing.
        """
        x = look_up(self.embedding[...], tokens, self.compute_dtype)
        rotary = rotary_angles(positions, self.config)
        routes = None if routing.routes is None else jnp.moveaxis(routing.routes, 2, 0)

        def run(x: jax.Array, of_layer: tuple[Any, jax.Array | None, Block]) -> tuple[jax.Array, Routed | None]:
            layer, own_routes, block = of_layer
            own = routing._replace(routes=own_routes)
            return around(functools.partial(block, rotary=rotary, layer=layer, attend=attend, routing=own))(x)

        if isinstance(self.layers, Block):
            block_form, stacks = nnx.split(self.layers)
            numbers = jnp.arange(self.config.layers, dtype=jnp.int32)
            x, reports = jax.lax.scan(
                lambda x, one: run(x, (one[0], one[1], nnx.merge(block_form, one[2]))), x, (numbers, routes, stacks)
            )
        else:
            found = []
            for layer, block in enumerate(self.layers):
                x, report = run(x, (layer, None if routes is None else routes[layer], block))
                found.append(report)
            reports = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
        if reports is not None:
            reports = reports._replace(routes=jnp.moveaxis(reports.routes, 0, 2))
        return Hidden(self.final_norm(x), reports)

    def output_weights(self) -> jax.Array:
        """Return the output head's weights [width, vocabulary], in the dtype in which they are stored."""
        weights: jax.Array = self.embedding[...].T if self.head is None else self.head.kernel[...]
        return weights

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return logits f32 [..., vocabulary] of the token after each hidden state [..., width]."""
        return carrier_matmul(jnp.float32, hidden, self.output_weights())
