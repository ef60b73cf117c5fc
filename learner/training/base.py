"""Round a model on its mesh to the frozen base of a run with adapters, and merge adapters into such a base."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
from jax.sharding import Mesh, NamedSharding

from rollcast.policy.config import ModelConfig
from rollcast.policy.mesh import params_shardings
from rollcast.policy.params import Params
from rollcast.policy.snapshot import merged_params, rounded_params


def rounded_on(mesh: Mesh, config: ModelConfig, params: Mapping[str, jax.Array]) -> Params:
    """Return the tensors that a snapshot has of parameters f32 on the mesh, which they stay on, one after the other."""
    base: Params = {}
    for name, value in params.items():
        rounded = rounded_params(config, name, value)
        where = params_shardings(mesh, rounded)
        base |= {one: _laid_out(leaf, where[one]) for one, leaf in rounded.items()}
    return base


@functools.partial(jax.jit, static_argnums=1)
def _laid_out(leaf: jax.Array, where: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(leaf, where)


def merged_on(mesh: Mesh, config: ModelConfig, base: Params, adapters: Params) -> Params:
    """Return float32 parameters on the mesh in which stacked adapters are part of a stacked base's kernels."""
    merge = functools.partial(merged_params, config)
    where = params_shardings(mesh, jax.eval_shape(merge, base, adapters))
    whole: Params = jax.jit(merge, out_shardings=where)(base, adapters)
    return whole
