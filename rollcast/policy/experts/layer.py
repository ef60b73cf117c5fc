"""Define the feed-forward layer of a mixture of experts (Shazeer et al. 2017; Qwen3 Technical Report, section 2).

A router in float32 gives each token a probability of each expert. The token goes to the most probable ones, each a
SwiGLU, and their results are added up, weighted by the probabilities. Token and expert pairs are sorted by expert, so
that each kernel is one grouped product (rollcast.policy.products.grouped): no expert has a capacity, and no token is
dropped.

On a mesh each device computes its own rows' tokens. Its share of the experts is stored there; those of the others are
gathered a layer at a time, in the forward pass's precision, and released afterwards. Or, for the few tokens of a decode
step, experts stay where they are, and their results are added up.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from rollcast.policy.config import ModelConfig
from rollcast.policy.products.grouped import GroupedLinear, Kernel, grouped_matmul
from rollcast.policy.products.linear import Flow, settled

# Experts that a rollout used may have probability 0 in float32 under later weights.
_SUM_MIN = 1e-30

CHOSEN = "routes"
"""The name under which rematerialisation keeps the chosen experts: computed again, a near tie could turn out
differently, and gradients would be those of other experts."""


class Routing(NamedTuple):
    """How a forward pass routes its tokens, besides by the model's own routers."""

    counted: jax.Array | None = None
    """bool [rows, time], the tokens that count for the experts' loads, which padding should not; None: all."""
    routes: jax.Array | None = None
    """Experts to use instead of the routers' choice: integers [rows, time, layers, experts_per_token]. A token any of
    whose experts in a layer is no expert's number, as rollcast.wire.routes.RouteShape.no_route, is routed by that
    layer's router. The weights are in any case the router's probabilities. None: no token has experts."""
    mesh: Mesh | None = None
    """The mesh of (data, fsdp, tensor) whose first two axes divide the rows; None: one device computes all of them."""
    gathers_experts: bool = True
    """On a mesh: whether a device gathers all experts for its rows, as is best for many rows. Otherwise it computes the
    share of each token that its own experts have, and the shares are added up over the devices, as is best for a few
    tokens that every device has."""


class Load(NamedTuple):
    """How a layer's experts were used by the tokens that count, f32; with an axis of layers in front for a model."""

    counts: jax.Array  # [experts], tokens sent to each
    probabilities: jax.Array  # [experts], sum over tokens of the router's probability, differentiable
    tokens: jax.Array  # []


class Routed(NamedTuple):
    """What a layer, or a whole model, reports of its routes."""

    routes: jax.Array  # [rows, time, experts_per_token], of a model [rows, time, layers, experts_per_token]
    load: Load


class _Kernels(NamedTuple):
    """The kernels of a SwiGLU of each expert."""

    gate: Kernel
    up: Kernel
    down: Kernel


class Experts(nnx.Module):  # type: ignore[misc]
    """A router and its experts."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.router = Router(config.width, config.experts)
        self.expert_gate = GroupedLinear(config.experts, config.width, config.expert_width)
        self.expert_up = GroupedLinear(config.experts, config.width, config.expert_width)
        self.expert_down = GroupedLinear(config.experts, config.expert_width, config.width)

    def __call__(self, x: jax.Array, routing: Routing) -> tuple[jax.Array, Routed]:
        """Return the layer's output like x [rows, time, width], and what it reports.

        ``routing.routes``, if given, are this layer's alone: [rows, time, experts_per_token].
        """
        kernels = _Kernels(self.expert_gate.read(), self.expert_up.read(), self.expert_down.read())
        own = functools.partial(_computed, self.config, self.expert_gate.flow)
        arguments = (x, self.router.kernel[...], kernels, routing.routes, routing.counted)
        if routing.mesh is None:
            return own((), (), *arguments)
        data, fsdp, tensor = routing.mesh.axis_names
        rows, whole = PartitionSpec((data, fsdp)), PartitionSpec()
        over = _dividing(routing.mesh, (fsdp, tensor), self.config.experts)
        own = functools.partial(own, (data, fsdp), over, adds_up=bool(over) and not routing.gathers_experts)
        result: tuple[jax.Array, Routed] = jax.shard_map(
            own,
            mesh=routing.mesh,
            in_specs=(rows, whole, PartitionSpec(over) if over else whole, rows, rows),
            out_specs=(rows, Routed(rows, Load(whole, whole, whole))),
            check_vma=False,  # kernels of our own do not say along which axes their results vary
        )(*arguments)
        return result


def _dividing(mesh: Mesh, axes: tuple[str, ...], experts: int) -> tuple[str, ...]:
    """Return as many of the axes, from the first on, as divide the experts evenly."""
    counts = range(len(axes), -1, -1)
    return next(axes[:one] for one in counts if experts % math.prod(mesh.shape[axis] for axis in axes[:one]) == 0)


class Router(nnx.Module):  # type: ignore[misc]
    """The matrix [width, experts] that a token's logits are computed with."""

    def __init__(self, width: int, experts: int) -> None:
        self.kernel = nnx.Param(jnp.zeros((width, experts), jnp.float32))


def _computed(
    config: ModelConfig,
    flow: Flow,
    axes: tuple[str, ...],
    over: tuple[str, ...],
    x: jax.Array,
    router: jax.Array,
    kernels: _Kernels,
    routes: jax.Array | None,
    counted: jax.Array | None,
    *,
    adds_up: bool = False,
) -> tuple[jax.Array, Routed]:
    """Compute a device's own tokens; loads are added up over the mesh's ``axes``.

    over: the axes that the experts are divided among; those of all devices are gathered, or with ``adds_up`` the
    results of each device's own.
    """
    tokens = x.reshape(-1, x.shape[-1])
    probabilities = _probabilities(tokens, router)
    chosen = _chosen(config, probabilities, None if routes is None else routes.reshape(-1, routes.shape[-1]))
    weights = _weights(config, probabilities, chosen)
    multiply = functools.partial(grouped_matmul, flow=flow, gathered_over=() if adds_up else over)
    if adds_up:
        here = config.experts // math.prod(jax.lax.axis_size(axis) for axis in over)
        own = chosen - jax.lax.axis_index(over) * here
        is_here = (own >= 0) & (own < here)
        share = _mixed(tokens, jnp.where(is_here, own, here), weights, kernels, here, multiply, is_here)
        mixed = jax.lax.psum(share, over)
    else:
        mixed = _mixed(tokens, chosen, weights, kernels, config.experts, multiply)
    load = _load(probabilities, chosen, None if counted is None else counted.reshape(-1))
    if axes:
        load = jax.lax.psum(load, axes)
    routed = chosen.astype(config.route_shape.dtype).reshape(*x.shape[:2], -1)
    return mixed.astype(x.dtype).reshape(x.shape), Routed(routed, load)


def _probabilities(tokens: jax.Array, router: jax.Array) -> jax.Array:
    """Return each expert's probability f32 [tokens, experts], with exact products, because experts are often close."""
    weights = settled(router, tokens.dtype).astype(jnp.float32)
    logits = jnp.matmul(tokens.astype(jnp.float32), weights, precision=jax.lax.Precision.HIGHEST)
    return jax.nn.softmax(logits, axis=-1)


def _chosen(config: ModelConfig, probabilities: jax.Array, given: jax.Array | None) -> jax.Array:
    """Return the experts of each token, i32 [tokens, experts_per_token]: those given, or the most probable."""
    _, own = jax.lax.top_k(jax.lax.stop_gradient(probabilities), config.experts_per_token)
    if given is not None:
        wanted = given.astype(jnp.int32)
        is_known = jnp.all((wanted >= 0) & (wanted < config.experts), axis=-1, keepdims=True)
        own = jnp.where(is_known, wanted, own)
    chosen: jax.Array = checkpoint_name(own, CHOSEN)
    return chosen


def _weights(config: ModelConfig, probabilities: jax.Array, chosen: jax.Array) -> jax.Array:
    """Return the weights f32 [tokens, experts_per_token] of the chosen experts; they are finite for any choice."""
    # A gather's gradient would be a scatter, which GPUs add up in an order that differs from run to run.
    weights = jnp.sum(jnp.where(_is_sent(chosen, config.experts), probabilities[:, None, :], 0.0), axis=-1)
    if not config.normalised_routes:
        return weights
    return weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), _SUM_MIN)


def _mixed(
    tokens: jax.Array,
    chosen: jax.Array,
    weights: jax.Array,
    kernels: _Kernels,
    experts: int,
    multiply: Callable[[jax.Array, Kernel, jax.Array], jax.Array],
    is_some: jax.Array | None = None,
) -> jax.Array:
    """Return the weighted sum f32 [tokens, width] of each token's experts.

    is_some: bool like ``chosen``; where it is False the number is ``experts``, which is none of them and adds nothing.
    """
    pairs = chosen.reshape(-1)
    order = jnp.argsort(pairs, stable=True).astype(jnp.int32)
    places = jnp.argsort(order).astype(jnp.int32)  # not by scattering, which TPUs do one by one
    sizes = jnp.sum(_is_sent(pairs, experts), axis=0, dtype=jnp.int32)
    x = _sent(tokens, order, places)
    inner = jax.nn.silu(multiply(x, kernels.gate, sizes)) * multiply(x, kernels.up, sizes)
    results = _returned(multiply(inner, kernels.down, sizes), order, places)
    of_tokens = results.reshape(*chosen.shape, -1).astype(jnp.float32) * weights[:, :, None]
    return jnp.sum(of_tokens if is_some is None else jnp.where(is_some[:, :, None], of_tokens, 0.0), axis=1)


def _is_sent(chosen: jax.Array, experts: int) -> jax.Array:
    """Return bool [..., experts], which of the experts each number i32 [...] is."""
    return chosen[..., None] == jnp.arange(experts, dtype=jnp.int32)


def _load(probabilities: jax.Array, chosen: jax.Array, counted: jax.Array | None) -> Load:
    experts = probabilities.shape[-1]
    counts = (jnp.ones(len(chosen), bool) if counted is None else counted).astype(jnp.float32)
    sent = jnp.sum(_is_sent(chosen, experts), axis=1, dtype=jnp.float32)
    return Load(
        jnp.sum(sent * counts[:, None], axis=0),
        jnp.sum(jnp.where(counts[:, None] > 0, probabilities, 0.0), axis=0),
        jnp.sum(counts),
    )


# Both move rows by a permutation, whose gradient is the inverse one. Automatic differentiation would scatter, which
# GPUs do in an order that differs from run to run, and would add up a token's gradients in the carrier's dtype.


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _sent(tokens: jax.Array, order: jax.Array, places: jax.Array) -> jax.Array:
    """Return the tokens [tokens, width] once for each of their experts, sorted by expert [pairs, width].

    order: i32 [pairs], the pair at each place, pairs counted by tokens. places: its inverse.
    """
    return tokens[order // (len(order) // len(tokens))]


def _sent_forward(tokens: jax.Array, order: jax.Array, places: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
    return _sent(tokens, order, places), (places, len(tokens))


def _sent_backward(saved: tuple[Any, ...], dy: jax.Array) -> tuple[jax.Array, None, None]:
    places, count = saved
    of_tokens = dy[places].reshape(count, -1, dy.shape[-1])
    return jnp.sum(of_tokens, axis=1, dtype=jnp.float32).astype(dy.dtype), None, None


_sent.defvjp(_sent_forward, _sent_backward)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _returned(results: jax.Array, order: jax.Array, places: jax.Array) -> jax.Array:
    """Return results [pairs, width] in the order of the tokens; see _sent."""
    return results[places]


def _returned_forward(results: jax.Array, order: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
    return results[places], order


def _returned_backward(order: jax.Array, dy: jax.Array) -> tuple[jax.Array, None, None]:
    return dy[order], None, None


_returned.defvjp(_returned_forward, _returned_backward)
