"""Round a model on its mesh to the frozen base of a run with adapters; merge adapters or add noise to such a base."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from learner.training.mesh import Shapes, placed_params, shapes_of, stacked_params, structs
from rollcast.policy.config import ModelConfig
from rollcast.policy.mesh import params_shardings
from rollcast.policy.norm_noise import norm_noise
from rollcast.policy.params import Params
from rollcast.policy.snapshot import merged_params, rounded_params
from rollcast.policy.stacking import stack_of

_GROUP_BYTES = 512 << 20
"""Bytes of a base's tensors that are stacked at a time, at least; fewer programs then have to be compiled."""


def rounded_on(mesh: Mesh, config: ModelConfig, params: Mapping[str, jax.Array]) -> Params:
    """Return the tensors that a snapshot has of parameters f32 on the mesh, which they stay on, one after the other."""
    base: Params = {}
    for name, value in params.items():
        rounded = rounded_params(config, name, value)
        where = params_shardings(mesh, rounded)
        base |= {one: _laid_out(leaf, where[one]) for one, leaf in rounded.items()}
    return base


def stacked_base(mesh: Mesh, tensors: Params) -> Params:
    """Place a base's tensors, of single layers, on the mesh, and stack them; the dictionary is emptied meanwhile.

    Some tensors' layers at a time are, so that a large base is never in memory twice.
    """
    base: Params = {}
    group: Params = {}
    for own in _by_stack(tensors):
        group |= {name: tensors.pop(name) for name in own}
        if not tensors or sum(leaf.nbytes for leaf in group.values()) >= _GROUP_BYTES:
            base |= stacked_params(mesh, placed_params(mesh, group))
            group = {}
    return base


def _by_stack(names: Iterable[str]) -> list[list[str]]:
    """Return the names of tensors that are stacked together, in groups."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(stack_of(name), []).append(name)
    return list(groups.values())


@functools.partial(jax.jit, static_argnums=1)
def _laid_out(leaf: jax.Array, where: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(leaf, where)


def merged_on(mesh: Mesh, config: ModelConfig, base: Params, adapters: Params) -> Params:
    """Return float32 parameters on the mesh in which stacked adapters are part of a stacked base's kernels."""
    whole: Params = _merging(mesh, config, shapes_of(base), shapes_of(adapters))(base, adapters)
    return whole


@functools.lru_cache(maxsize=1)  # a learner has one model, whose program is compiled once
def _merging(mesh: Mesh, config: ModelConfig, base: Shapes, adapters: Shapes) -> Any:
    merge = functools.partial(merged_params, config)
    where = params_shardings(mesh, jax.eval_shape(merge, structs(base), structs(adapters)))
    return jax.jit(merge, out_shardings=where)


def noisy_scales(mesh: Mesh, config: ModelConfig, base: Params, seed: int, version: int) -> Params:
    """Return the scales f32 that a version's noise makes of a stacked base's, on the mesh; none without noise."""
    noise = placed_params(mesh, norm_noise(config, seed, version))
    return {name: base[name].astype(jnp.float32) + value for name, value in noise.items()}
