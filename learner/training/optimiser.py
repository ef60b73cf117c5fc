"""Update parameters by Adam with gradient clipping, with moments in 32, 16 or 8 bits, on devices or in host memory.

Large tensors are updated one after the other, so that the temporary memory of a step is that of one tensor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner.config import OptimiserConfig
from learner.training.mesh import sharding_of, state_shardings
from learner.training.moments import (
    Coded,
    chance,
    decode_first,
    decode_second,
    encode_first,
    encode_second,
    to_bfloat16,
)
from rollcast.policy.params import Params

ALONE_ELEMENTS = 1 << 18
"""Tensors of at least this many elements are updated alone, smaller ones together: each call has a fixed cost."""
_EPSILON = 1e-8

Tensors = tuple[Any, ...]  # arrays of a group, in the order of its names


class Moments(NamedTuple):
    """The state of Adam: the number of steps (i32), and both moments by tensor name, in the form of state_dtype."""

    count: jax.Array
    first: dict[str, Any]
    second: dict[str, Any]


class Updates(Protocol):
    """An optimiser."""

    def init(self, params: Params) -> Any:
        """Return a fresh state."""

    def apply(self, gradients: Params, state: Any, params: Params, sound: jax.Array) -> tuple[Params, Any, jax.Array]:
        """Return parameters and state after a step, and the norm of the gradients before clipping.

        The step changes nothing unless ``sound`` (bool, scalar) and the norm is finite. The devices decide, so that
        no host has to wait for the gradients, and that a replayed step is skipped again.

        State and parameters are donated, and gradients are removed from their dictionary once used, to free memory.
        """

    def abstract_state(self, params: Params) -> Any:
        """Return shapes and shardings of a state, for parameters of which only these are given too."""

    def lowered(self, params: Params) -> Iterator[jax.stages.Lowered]:
        """Lower each program of ``apply`` once, for parameters of which only shapes and shardings are given."""


def updates(config: OptimiserConfig, learning_rate: float, mesh: Mesh) -> Updates:
    """Return an optimiser that clips gradients to the global norm and applies Adam (Kingma and Ba 2015)."""
    return _Adam(config, learning_rate, mesh)


class _Adam:
    def __init__(self, config: OptimiserConfig, learning_rate: float, mesh: Mesh) -> None:
        self._config = config
        self._learning_rate = learning_rate
        self._mesh = mesh
        self._places: dict[str, tuple[Tensors, Tensors, Tensors]] = {}  # keyed by a group's first name
        self._begin = jax.jit(lambda: jnp.zeros((), jnp.int32), out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._init = jax.jit(self._nothing, static_argnums=1)
        self._measure = jax.jit(_measured)
        self._step = jax.jit(self._stepped, donate_argnums=(1, 2, 3), static_argnums=8)

    def init(self, params: Params) -> Moments:
        state = Moments(self._begin(), {}, {})
        for names in _groups(params):
            own = tuple(params[name] for name in names)
            first, second = self._init(own, self._where(names, own)[1:])
            self._keep(state, names, first, second)
        return state

    def apply(
        self, gradients: Params, state: Moments, params: Params, sound: jax.Array
    ) -> tuple[Params, Moments, jax.Array]:
        norm, taken, count = self._measure(gradients, state.count, sound)
        stepped: Params = {}
        kept = Moments(count, {}, {})
        before: Any = None
        for names in _groups(params):
            own, first, second = (tuple(tree[name] for name in names) for tree in (params, state.first, state.second))
            own_gradients = tuple(gradients.pop(name) for name in names)
            where = self._where(names, own)
            if self._config.offload:
                first, second = jax.device_put((first, second), where[1:])
            own, first, second = self._step(own_gradients, own, first, second, count, norm, taken, _seeds(names), where)
            stepped |= zip(names, own, strict=True)
            self._keep(kept, names, first, second)
            if self._config.offload:  # wait, so that the devices hold the moments of at most two groups
                jax.block_until_ready(before)
                before = [kept.first[name] for name in names]
        return {name: stepped[name] for name in params}, kept, norm

    def abstract_state(self, params: Params) -> Moments:
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        state = Moments(jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere), {}, {})
        for names in _groups(params):
            own = tuple(params[name] for name in names)
            for kept, leaves, where in zip(
                state[1:], jax.eval_shape(self._empty, own), self._where(names, own)[1:], strict=True
            ):
                kept.update(zip(names, _at(leaves, where), strict=True))
        return state

    def lowered(self, params: Params) -> Iterator[jax.stages.Lowered]:
        state = self.abstract_state(params)
        everywhere = state.count.sharding
        sound = jax.ShapeDtypeStruct((), jnp.bool_, sharding=everywhere)
        norm = jax.ShapeDtypeStruct((), jnp.float32, sharding=everywhere)
        yield self._measure.lower(params, state.count, sound)
        seen = set()
        for names in _groups(params):
            own, first, second = (tuple(tree[name] for name in names) for tree in (params, state.first, state.second))
            where = self._where(names, own)
            kind = (tuple(leaf.shape for leaf in own), where)
            if kind not in seen:
                seen.add(kind)
                yield self._step.lower(own, own, first, second, state.count, norm, sound, _seeds(names), where)

    def _where(self, names: list[str], params: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """Return the shardings of a group's parameters, first and second moments."""
        if names[0] not in self._places:
            self._places[names[0]] = self._placed(names, params)
        return self._places[names[0]]

    def _placed(self, names: list[str], params: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        own = tuple(sharding_of(self._mesh, name, leaf.shape) for name, leaf in zip(names, params, strict=True))
        moments = jax.eval_shape(self._empty, params)
        first, second = (
            tuple(state_shardings(self._mesh, {name: leaf})[name] for name, leaf in zip(names, of_kind, strict=True))
            for of_kind in moments
        )
        return own, first, second

    def _empty(self, params: Tensors) -> tuple[Tensors, Tensors]:
        zeros = [jnp.zeros(leaf.shape, jnp.float32) for leaf in params]
        seed, form = jnp.uint32(0), self._config.state_dtype
        first = tuple(_encode(leaf, seed, form) for leaf in zeros)
        return first, tuple(_encode(leaf, seed, form, second=True) for leaf in zeros)

    def _nothing(self, params: Tensors, where: tuple[Tensors, Tensors]) -> tuple[Tensors, Tensors]:
        laid_out: tuple[Tensors, Tensors] = jax.lax.with_sharding_constraint(self._empty(params), where)
        return laid_out

    def _keep(self, state: Moments, names: list[str], first: Tensors, second: Tensors) -> None:
        if self._config.offload:
            where = jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind("pinned_host"), (first, second))
            first, second = jax.device_put((first, second), where)
        state.first.update(zip(names, first, strict=True))
        state.second.update(zip(names, second, strict=True))

    def _stepped(
        self,
        gradients: Tensors,
        params: Tensors,
        first: Tensors,
        second: Tensors,
        count: jax.Array,
        norm: jax.Array,
        taken: jax.Array,
        seeds: jax.Array,
        where: tuple[Tensors, Tensors, Tensors],
    ) -> tuple[Tensors, Tensors, Tensors]:
        most, form = self._config.max_grad_norm, self._config.state_dtype
        ends = []
        for index, (gradient, param) in enumerate(zip(gradients, params, strict=True)):
            clipped = jnp.where(norm < most, gradient, gradient / norm * most)
            mean, square = self._averaged(clipped, first[index], second[index])
            change = self._change(mean, square, count)
            own = seeds[index] ^ count.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
            ends.append((param + change, _encode(mean, own[0], form), _encode(square, own[1], form, second=True)))
        turned = tuple(zip(*ends, strict=True))
        turned = jax.tree.map(lambda new, old: jnp.where(taken, new, old), turned, (params, first, second))
        laid_out: tuple[Tensors, Tensors, Tensors] = jax.lax.with_sharding_constraint(turned, where)
        return laid_out

    def _averaged(self, gradient: jax.Array, first: Any, second: Any) -> tuple[jax.Array, jax.Array]:
        b1, b2 = self._config.b1, self._config.b2
        mean = b1 * _decode(first) + (1.0 - b1) * gradient
        return mean, b2 * _decode(second, second=True) + (1.0 - b2) * jnp.square(gradient)

    def _change(self, mean: jax.Array, square: jax.Array, count: jax.Array) -> jax.Array:
        steps = count.astype(jnp.float32)
        root = jnp.sqrt(square / (1.0 - self._config.b2**steps))
        return -self._learning_rate * (mean / (1.0 - self._config.b1**steps) / (root + _EPSILON))


def _measured(gradients: Params, count: jax.Array, sound: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients' global norm, whether the step is taken, and the number of steps taken with it."""
    norm = optax.tree.norm(gradients)
    taken = sound & jnp.isfinite(norm)
    return norm, taken, count + taken.astype(count.dtype)


def _at(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree, shardings
    )


def _groups(params: Params) -> list[list[str]]:
    """Return the groups of tensor names that are updated together."""
    small = [name for name, leaf in params.items() if math.prod(leaf.shape) < ALONE_ELEMENTS]
    return [[name] for name in params if name not in set(small)] + ([small] if small else [])


def _seeds(names: list[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return seeds, u32 [names, 2], for the stochastic rounding of both moments."""
    return np.array([[zlib.crc32(f"{name}/{kind}".encode()) for kind in ("first", "second")] for name in names], "u4")


def _encode(values: jax.Array, seed: jax.Array, form: str, *, second: bool = False) -> Any:
    """Encode a moment as it is stored. Vectors take little memory and stay float32."""
    if values.ndim < 2 or form == "float32":
        return values
    chances = chance(values.shape, seed)
    if form == "bfloat16":
        return to_bfloat16(values, chances)
    return encode_second(values, chances) if second else encode_first(values, chances)


def _decode(moment: Any, *, second: bool = False) -> jax.Array:
    if isinstance(moment, Coded):
        return decode_second(moment) if second else decode_first(moment)
    return moment.astype(jnp.float32)
