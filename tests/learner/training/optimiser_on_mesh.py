"""Print how far optimiser steps on a mesh of 8 virtual devices are from those on one device, as JSON by setting."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.config import MeshConfig, OptimiserConfig
from learner.training.mesh import make_mesh, placed_params
from learner.training.optimiser import updates

STEPS = 3
SHAPES = {
    "embedding": (64, 32),
    "layers.0.attention.query.kernel": (512, 512),
    "layers.0.attention_norm.scale": (512,),
    "layers.0.feed_forward.down.kernel": (1024, 512),
}


def main() -> None:
    settings = (("adamw", "int8"), ("muon", "float32"))  # every optimiser and every form of its state
    print(json.dumps({f"{name} {form}": difference(name=name, state_dtype=form) for name, form in settings}))


def difference(**values: Any) -> float:
    """Return the largest difference of a parameter after STEPS steps."""
    config = OptimiserConfig.model_validate({"weight_decay": 0.1} | values)
    one, many = (trained(config, mesh) for mesh in (MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)))
    return max(float(np.abs(one[name] - many[name]).max()) for name in SHAPES)


def trained(config: OptimiserConfig, axes: MeshConfig) -> dict[str, Any]:
    random, mesh = np.random.default_rng(0), make_mesh(axes)
    made = updates(config, 0.01, mesh)
    params, *gradients = (
        placed_params(mesh, {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()})
        for _ in range(1 + STEPS)
    )
    state = made.init(params)
    for gradient in gradients:
        params, state, _ = made.apply(gradient, state, params, jnp.bool_(True))
    moments = {name: jax.tree.leaves(state.moments[name]) for name in SHAPES if name.endswith(".kernel")}
    assert all(leaf.sharding == params[name].sharding for name, leaves in moments.items() for leaf in leaves)
    return {name: np.asarray(leaf) for name, leaf in params.items()}


if __name__ == "__main__":
    main()
