"""Compile the sampler's decode loop and reading of prompts for accelerators, and print what each needs as JSON.

    python -m bench.ahead.compile_sampler qwen3-32b h100x8 --rollouts 64 --prompt-tokens 1024 --new-tokens 7168

bench.learner.fits starts this program with the environment that the compilers need (accelerators.environment).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bench.ahead.accelerators import ACCELERATORS, devices_of
from rollcast.policy.config import ModelConfig
from rollcast.policy.mesh import engine_shardings, tensor_mesh
from rollcast.policy.params import abstract_snapshot
from rollcast.policy.sampling import kv_cache
from rollcast.policy.sampling.decoding import Controls
from rollcast.policy.sampling.sampler import Sampler
from rollcast.wire.limits import STOP_TOKENS_MAX


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("accelerators", choices=ACCELERATORS)
    parser.add_argument("--rollouts", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parsed = parser.parse_args(arguments)
    kv_cache.RUN_TOKENS = {}  # the accelerator's, as this process computes on a CPU
    mesh = tensor_mesh(devices_of(ACCELERATORS[parsed.accelerators]))
    sampler = Sampler(
        ModelConfig(preset=parsed.model), parsed.prompt_tokens, parsed.new_tokens, parsed.rollouts, mesh=mesh
    )
    print(json.dumps({name: _bytes(lowered) for name, lowered in programs(sampler, mesh)}))


def programs(sampler: Sampler, mesh: Mesh) -> Iterator[tuple[str, jax.stages.Lowered]]:
    """Yield the programs of a sampler, lowered from shapes and shardings alone; of prompts the longest piece."""
    snapshot = abstract_snapshot(sampler.config)
    where = engine_shardings(mesh, sampler.config, snapshot)
    params = {name: _at(leaf.shape, leaf.dtype, where[name]) for name, leaf in snapshot.items()}
    shapes, by_head = sampler.page_shapes()
    pages = jax.tree.map(lambda leaf: _at(leaf.shape, leaf.dtype, by_head), shapes)

    def whole(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return _at(shape, dtype, NamedSharding(mesh, PartitionSpec()))

    i32, rows, bucket = jnp.int32, sampler.batch_size, sampler.buckets()[-1]
    controls = Controls(
        tables=whole(i32, rows, sampler.table_pages),
        starts=whole(i32, rows),
        last=whole(i32, rows),
        budgets=whole(i32, rows),
        seeds=whole(jnp.uint32, rows, 2),
        stop_tokens=whole(i32, rows, STOP_TOKENS_MAX),
        temperatures=whole(jnp.float32, rows),
        adapters=whole(i32, rows),
        noise_scale=whole(jnp.float32),
    )
    yield "decode", sampler.decode.lower(params, pages, controls, whole(i32), whole(i32))
    read = sampler.rows_at_once(bucket)
    tables, tokens = whole(i32, read, sampler.table_pages), whole(i32, read, bucket)
    of_rows = whole(i32, read)  # where each piece starts, its length, and the slot of its adapters
    yield "prefill", sampler.extend.lower(params, pages, tables, tokens, of_rows, of_rows, of_rows)


def _bytes(lowered: jax.stages.Lowered) -> int:
    """Return the bytes of a program on each device: arguments, temporaries, and results that are no argument's."""
    memory = lowered.compile().memory_analysis()
    made = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes + made)


def _at(shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


if __name__ == "__main__":
    main()
