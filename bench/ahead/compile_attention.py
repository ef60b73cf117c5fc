"""Compile attention and its gradients for accelerators at several lengths of rows, and print its memory as JSON.

    python -m bench.ahead.compile_attention h100x8 512 8192 32768

bench.learner.attention starts this program with the environment that the compilers need (accelerators.environment).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp

from bench.ahead.accelerators import ACCELERATORS, Accelerators, devices_of
from learner.config import MeshConfig
from learner.training.mesh import make_mesh, rows_sharding
from rollcast.policy.attention import Device, kernel_for, segment_attend

QUERY_HEADS, KEY_HEADS, HEAD_SIZE = 32, 8, 128  # Qwen3-4B and 8B


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("accelerators", choices=ACCELERATORS)
    parser.add_argument("row_tokens", type=int, nargs="+")
    parsed = parser.parse_args(arguments)
    accelerators = ACCELERATORS[parsed.accelerators]
    devices = devices_of(accelerators)
    print(json.dumps([compiled(accelerators, devices, tokens) for tokens in parsed.row_tokens]))


def compiled(accelerators: Accelerators, devices: list[Any], row_tokens: int) -> dict[str, Any]:
    """Compile one layer's attention over packed rows, one a device; return the kernel and its temporary bytes."""
    mesh = make_mesh(MeshConfig(data=accelerators.data, fsdp=accelerators.fsdp), devices)
    device = Device(accelerators.platform, accelerators.compute_capability)
    kernel = kernel_for(device, row_tokens, HEAD_SIZE, jnp.bfloat16, packed=True).kernel

    def total(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array) -> jax.Array:
        mixed = segment_attend(segments, kernel, mesh)(0, queries, keys, values)
        return jnp.sum(jnp.square(mixed.astype(jnp.float32)))

    def shape(dtype: Any, *rest: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((mesh.size, row_tokens, *rest), dtype, sharding=rows_sharding(mesh))

    queries, keys = (shape(jnp.bfloat16, heads, HEAD_SIZE) for heads in (QUERY_HEADS, KEY_HEADS))
    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    memory = gradients.lower(queries, keys, keys, shape(jnp.int32)).compile().memory_analysis()
    return {"row_tokens": row_tokens, "kernel": kernel, "temporary_bytes": memory.temp_size_in_bytes}


if __name__ == "__main__":
    main()
