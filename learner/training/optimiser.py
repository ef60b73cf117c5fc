"""Update parameters on a mesh by optax transformations: clipped gradients, moments on the devices or in host memory.

Large tensors are updated one after the other, so that the temporary memory of a step is that of one tensor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner.config import OptimiserConfig
from learner.optimisers.moments import Stored, Transformation
from learner.optimisers.transformations import ByName, Schedule, transformations_of
from learner.training.mesh import sharding_of, state_shardings
from rollcast.policy.params import Params

ALONE_ELEMENTS = 1 << 18
"""Tensors of at least this many elements are updated alone, smaller ones together: each call has a fixed cost."""

Tensors = tuple[Any, ...]  # arrays of a group, in the order of its names


class State(NamedTuple):
    """The state of an optimiser: the number of steps taken (i32), and the moments of each tensor by its name."""

    count: jax.Array
    moments: dict[str, Stored]


class _Step(NamedTuple):
    """What the updates of all tensors in one step share; scalars."""

    count: jax.Array  # steps taken before, i32
    norm: jax.Array  # of all gradients before clipping, f32
    taken: jax.Array  # whether the step changes anything, bool


class _Plan(NamedTuple):
    """How a group of tensors is updated. It is part of the key of the compiled program, so equal groups share one."""

    transformations: tuple[Transformation, ...]
    params: tuple[NamedSharding, ...]
    moments: tuple[Stored, ...]  # of jax.ShapeDtypeStruct with shardings


def updates(config: OptimiserConfig, learning_rate: float | Schedule, mesh: Mesh) -> Updates:
    """Return the configured optimiser with this learning rate."""
    chosen = transformations_of(config, learning_rate)
    return Updates(chosen, mesh, max_grad_norm=config.max_grad_norm, offload=config.offload)


class Updates:
    """An optimiser on a mesh.

    Args:
        chosen: returns a tensor's transformation by the tensor's name.
        max_grad_norm: global norm to which larger gradients are scaled down.
        offload: keep the moments in the memory of the devices' hosts.
    """

    def __init__(self, chosen: ByName, mesh: Mesh, *, max_grad_norm: float = math.inf, offload: bool = False) -> None:
        self._chosen = chosen
        self._mesh = mesh
        self._max_grad_norm = max_grad_norm
        self._offload = offload
        self._plans: dict[str, _Plan] = {}  # keyed by a group's first name
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._begin = jax.jit(lambda: jnp.zeros((), jnp.int32), out_shardings=self._everywhere)
        self._init = jax.jit(_fresh, static_argnums=1)
        self._measure = jax.jit(_measured)
        self._update = jax.jit(self._updated, donate_argnums=(1, 2), static_argnums=5)

    def init(self, params: Params) -> State:
        """Return a fresh state."""
        state = State(self._begin(), {})
        for names in _groups(params):
            own = tuple(params[name] for name in names)
            moments = self._init(own, self._plan(names, own))
            state.moments.update(zip(names, self._kept(moments), strict=True))
        return state

    def apply(
        self, gradients: Params, state: State, params: Params, sound: jax.Array
    ) -> tuple[Params, State, jax.Array]:
        """Return parameters and state after a step, and the norm of the gradients before clipping.

        The step changes nothing unless ``sound`` (bool, scalar) and the norm is finite. The devices decide, so that
        no host has to wait for the gradients, and that a replayed step is skipped again.

        State and parameters are donated, and gradients are removed from their dictionary once used, to free memory.
        """
        step, count = self._measure(gradients, state.count, sound)
        stepped: Params = {}
        kept = State(count, {})
        before: Any = None
        for names in _groups(params):
            own, moments = (tuple(tree[name] for name in names) for tree in (params, state.moments))
            own_gradients = tuple(gradients.pop(name) for name in names)
            plan = self._plan(names, own)
            if self._offload:
                moments = jax.device_put(moments, _shardings(plan.moments))
            own, moments = self._update(own_gradients, own, moments, step, _seeds(names), plan)
            moments = self._kept(moments)
            stepped |= zip(names, own, strict=True)
            kept.moments.update(zip(names, moments, strict=True))
            if self._offload:  # wait, so that the devices hold the moments of at most two groups
                jax.block_until_ready(before)
                before = moments
        return {name: stepped[name] for name in params}, kept, step.norm

    def abstract_state(self, params: Params) -> State:
        """Return shapes and shardings of a state during a step, for parameters of which only these are given."""
        state = State(jax.ShapeDtypeStruct((), jnp.int32, sharding=self._everywhere), {})
        for names in _groups(params):
            plan = self._plan(names, tuple(params[name] for name in names))
            state.moments.update(zip(names, plan.moments, strict=True))
        return state

    def lowered(self, params: Params) -> Iterator[jax.stages.Lowered]:
        """Lower each program of `apply` once, for parameters of which only shapes and shardings are given."""
        count = self.abstract_state(params).count
        sound = jax.ShapeDtypeStruct((), jnp.bool_, sharding=self._everywhere)
        yield self._measure.lower(params, count, sound)
        step = _Step(count, jax.ShapeDtypeStruct((), jnp.float32, sharding=self._everywhere), sound)
        seen = set()
        for names in _groups(params):
            own = tuple(params[name] for name in names)
            plan = self._plan(names, own)
            if (kind := (plan, tuple(leaf.shape for leaf in own))) not in seen:
                seen.add(kind)
                yield self._update.lower(own, own, plan.moments, step, _seeds(names), plan)

    def _plan(self, names: Sequence[str], params: Tensors) -> _Plan:
        if names[0] not in self._plans:
            chosen = tuple(map(self._chosen, names))
            moments = map(jax.eval_shape, [one.init for one in chosen], params)
            fresh = dict(zip(names, moments, strict=True))
            placed = jax.tree.map(_at, fresh, state_shardings(self._mesh, fresh))
            own = (sharding_of(self._mesh, name, leaf.shape) for name, leaf in zip(names, params, strict=True))
            self._plans[names[0]] = _Plan(chosen, tuple(own), tuple(placed[name] for name in names))
        return self._plans[names[0]]

    def _kept(self, moments: Tensors) -> Tensors:
        """Move the moments to where they stay between steps."""
        if not self._offload:
            return moments
        where = jax.tree.map(lambda sharding: sharding.with_memory_kind("pinned_host"), _shardings(moments))
        moved: Tensors = jax.device_put(moments, where)
        return moved

    def _updated(
        self, gradients: Tensors, params: Tensors, moments: Tensors, step: _Step, seeds: jax.Array, plan: _Plan
    ) -> tuple[Tensors, Tensors]:
        most, norm = self._max_grad_norm, step.norm
        ends = []
        for index, (gradient, param) in enumerate(zip(gradients, params, strict=True)):
            clipped = jnp.where(norm < most, gradient, gradient / norm * most)
            change, after = plan.transformations[index].update(
                clipped, moments[index], param, count=step.count, seeds=seeds[index]
            )
            ends.append((optax.apply_updates(param, change), after))
        turned = tuple(zip(*ends, strict=True))
        turned = jax.tree.map(lambda new, old: jnp.where(step.taken, new, old), turned, (params, moments))
        where = (plan.params, _shardings(plan.moments))
        laid_out: tuple[Tensors, Tensors] = jax.lax.with_sharding_constraint(turned, where)
        return laid_out


def _fresh(params: Tensors, plan: _Plan) -> Tensors:
    """Return a group's moments before the first step."""
    moments = tuple(one.init(param) for one, param in zip(plan.transformations, params, strict=True))
    laid_out: Tensors = jax.lax.with_sharding_constraint(moments, _shardings(plan.moments))
    return laid_out


def _at(leaf: Any, where: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def _measured(gradients: Params, count: jax.Array, sound: jax.Array) -> tuple[_Step, jax.Array]:
    """Return the step, and the number of steps taken after it."""
    norm = optax.tree.norm(gradients)
    taken = sound & jnp.isfinite(norm)
    return _Step(count, norm, taken), count + taken.astype(count.dtype)


def _groups(params: Params) -> list[list[str]]:
    """Return the groups of tensor names that are updated together."""
    small = [name for name, leaf in params.items() if math.prod(leaf.shape) < ALONE_ELEMENTS]
    return [[name] for name in params if name not in set(small)] + ([small] if small else [])


def _seeds(names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return seeds, u32 [names, 2], for the stochastic rounding of both moments."""
    return np.array([[zlib.crc32(f"{name}/{kind}".encode()) for kind in ("first", "second")] for name in names], "u4")
