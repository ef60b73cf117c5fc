"""The one place where a kernel meets an activation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class Linear(nnx.Module):  # type: ignore[misc]
    """x @ kernel; kernel is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel[...].astype(x.dtype)
