"""Update parameters on a mesh by optax transformations: clipped gradients, moments on the devices or in host memory.

Large tensors are updated one after the other, and a stacked one (rollcast.policy.stacking) a layer at a time, so that
the temporary memory of a step is that of one layer's tensor.
"""

from __future__ import annotations

import functools
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
from learner.training.mesh import state_shardings
from rollcast.policy.mesh import sharding_of
from rollcast.policy.params import Params
from rollcast.policy.stacking import changed_by_layer, is_stacked

ALONE_ELEMENTS = 1 << 18
"""Tensors of at least this many elements are updated alone, smaller ones together: each call has a fixed cost."""

# Odd, so that the seeds of all layers of a stacked tensor differ (the finaliser of MurmurHash3 multiplies by it).
_SEED_STEP = np.uint32(0x85EBCA6B)

Tensors = tuple[Any, ...]  # arrays of a group, in the order of its names


class State(NamedTuple):
    """The state of an optimiser: the number of steps taken (i32), and the moments of each tensor by its name."""

    count: jax.Array
    moments: dict[str, Stored]


class Step(NamedTuple):
    """What the updates of all tensors in one step share; scalars on every device."""

    count: jax.Array  # steps taken before, i32
    norm: jax.Array  # of all gradients before clipping, f32
    taken: jax.Array  # whether the step changes anything, bool


class _Plan(NamedTuple):
    """How a group of tensors is updated. It is part of the key of the compiled program, so equal groups share one."""

    transformations: tuple[Transformation, ...]
    stacked: tuple[bool, ...]  # whether each tensor's first axis is that of layers (rollcast.policy.stacking)
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

    def apply(self, gradients: Params, state: State, params: Params, sound: jax.Array) -> tuple[Params, State, Step]:
        """Return parameters and state after a step, and what the step was.

        It changes nothing unless ``sound`` (bool, scalar) and the norm is finite. The devices decide, so that
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
        return {name: stepped[name] for name in params}, kept, step

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
        step = Step(count, jax.ShapeDtypeStruct((), jnp.float32, sharding=self._everywhere), sound)
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
            stacked = tuple(map(is_stacked, names))
            moments = jax.eval_shape(functools.partial(_moments, chosen, stacked), params)
            fresh = dict(zip(names, moments, strict=True))
            placed = jax.tree.map(_at, fresh, state_shardings(self._mesh, fresh))
            own = (sharding_of(self._mesh, name, leaf.shape) for name, leaf in zip(names, params, strict=True))
            self._plans[names[0]] = _Plan(chosen, stacked, tuple(own), tuple(placed[name] for name in names))
        return self._plans[names[0]]

    def _kept(self, moments: Tensors) -> Tensors:
        """Move the moments to where they stay between steps."""
        if not self._offload:
            return moments
        where = jax.tree.map(lambda sharding: sharding.with_memory_kind("pinned_host"), _shardings(moments))
        moved: Tensors = jax.device_put(moments, where)
        return moved

    def _updated(
        self, gradients: Tensors, params: Tensors, moments: Tensors, step: Step, seeds: jax.Array, plan: _Plan
    ) -> tuple[Tensors, Tensors]:
        ends = []
        for index, kept in enumerate(zip(params, moments, strict=True)):
            change = functools.partial(self._one_updated, plan.transformations[index], step, seeds[index])
            gradient = gradients[index]
            ends.append(changed_by_layer(change, kept, gradient) if plan.stacked[index] else change(kept, gradient))
        turned = tuple(zip(*ends, strict=True))
        where = (plan.params, _shardings(plan.moments))
        laid_out: tuple[Tensors, Tensors] = jax.lax.with_sharding_constraint(turned, where)
        return laid_out

    def _one_updated(
        self,
        transformation: Transformation,
        step: Step,
        seeds: jax.Array,
        kept: tuple[jax.Array, Stored],
        gradient: jax.Array,
        layer: jax.Array | int = 0,
    ) -> tuple[jax.Array, Stored]:
        """Return one tensor, or one layer of a stacked one, and its moments after the step."""
        param, moments = kept
        clipped = jnp.where(step.norm < self._max_grad_norm, gradient, gradient / step.norm * self._max_grad_norm)
        own_seeds = seeds ^ jnp.uint32(layer) * _SEED_STEP
        change, after = transformation.update(clipped, moments, param, count=step.count, seeds=own_seeds)
        new = (optax.apply_updates(param, change), after)
        stepped: tuple[jax.Array, Stored] = jax.tree.map(lambda new, old: jnp.where(step.taken, new, old), new, kept)
        return stepped


def _moments(transformations: Sequence[Transformation], stacked: Sequence[bool], params: Tensors) -> Tensors:
    """Return the moments of tensors before the first step; those of stacked tensors are stacked too."""
    inits = [jax.vmap(one.init) if stack else one.init for one, stack in zip(transformations, stacked, strict=True)]
    return tuple(init(param) for init, param in zip(inits, params, strict=True))


def _fresh(params: Tensors, plan: _Plan) -> Tensors:
    """Return a group's moments before the first step."""
    moments = _moments(plan.transformations, plan.stacked, params)
    laid_out: Tensors = jax.lax.with_sharding_constraint(moments, _shardings(plan.moments))
    return laid_out


def _at(leaf: Any, where: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def _measured(gradients: Params, count: jax.Array, sound: jax.Array) -> tuple[Step, jax.Array]:
    """Return the step, and the number of steps taken after it."""
    norm = optax.tree.norm(gradients)
    taken = sound & jnp.isfinite(norm)
    return Step(count, norm, taken), count + taken.astype(count.dtype)


def _groups(params: Params) -> list[list[str]]:
    """Return the groups of tensor names that are updated together."""
    small = [name for name, leaf in params.items() if math.prod(leaf.shape) < ALONE_ELEMENTS]
    return [[name] for name in params if name not in set(small)] + ([small] if small else [])


def _seeds(names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return seeds, u32 [names, 2], for the stochastic rounding of both moments."""
    return np.array([[zlib.crc32(f"{name}/{kind}".encode()) for kind in ("first", "second")] for name in names], "u4")
