"""Print how XLA partitions gradient steps over 8 virtual devices: their collectives, and the bytes that they need.

Run as a program on 8 devices, with a list of cases:

    python -m tests.learner.training.partitioned_step '[{"mesh": {"fsdp": 8}, "model": {...}}]'
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DEVICES, TIME = 8, 128
VOCABULARY, TILE_COLUMNS = 4096, 512

# One instruction of the partitioned program, such as "%x = f32[16,8]{1,0} all-reduce(...)"; a tuple has several shapes.
_COLLECTIVE = re.compile(r"= (\(?[^=]*?) (all-gather|all-reduce|reduce-scatter|all-to-all)\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] += f" --xla_dump_to={folder} --xla_dump_hlo_pass_re=spmd-partitioning"
        for case in json.loads(sys.argv[1]):
            size = compiled_step(case).memory_analysis().temp_size_in_bytes
            (dump,) = Path(folder).glob("*jit__add_part*after_spmd-partitioning*")
            found.append({"temporary_bytes": size, "collectives": collectives(dump.read_text())})
            dump.unlink()
    print(json.dumps(found))


def compiled_step(case: dict[str, Any]) -> Any:
    """Compile the gradients of one micro-batch, without allocating a parameter."""
    import jax
    import jax.numpy as jnp

    from learner.config import LearnerConfig
    from learner.training.mesh import make_mesh
    from learner.training.micro_batches import Gradients, forward_of
    from rollcast.policy.config import ModelConfig
    from rollcast.policy.logprobs import completion_logprobs
    from rollcast.policy.mesh import params_shardings
    from rollcast.policy.params import abstract_params
    from rollcast.policy.stacking import stacked

    jax.config.update("jax_enable_compilation_cache", False)  # a cached program is not partitioned, and dumps nothing
    model = ModelConfig(vocabulary_size=VOCABULARY, precision="bfloat16", **case["model"])
    config = LearnerConfig(remat="blocks", mesh=case["mesh"])
    mesh = make_mesh(config.mesh)
    forward = forward_of(config, mesh)
    # The logits of one micro-batch need several tiles of the vocabulary.
    forward = dataclasses.replace(forward, tiles=dataclasses.replace(forward.tiles, elements=TIME * TILE_COLUMNS))

    def loss(params: Any, part: Any, _sequences: int) -> tuple[jax.Array, Any]:
        return jnp.sum(completion_logprobs(model, params, **part, forward=forward).logprobs), ({}, ())

    shapes = jax.eval_shape(stacked, abstract_params(model))
    where = params_shardings(mesh, shapes)
    params = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where[name]) for name, leaf in shapes.items()}
    part = {name: jax.ShapeDtypeStruct((DEVICES, TIME), jnp.int32) for name in ("tokens", "positions", "segments")}
    part["temperature"] = jax.ShapeDtypeStruct((DEVICES, TIME), jnp.float32)
    return Gradients(loss, mesh, DEVICES * TIME).add.lower(params, params, part, 1).compile()


def collectives(text: str) -> list[tuple[str, str, list[int]]]:
    """Return kind, dtype and shape of the result of each collective operation of a program."""
    return [
        (found[2], shape[1], [int(size) for size in shape[2].split(",") if size])
        for found in _COLLECTIVE.finditer(text)
        for shape in _SHAPE.finditer(found[1])
    ]


if __name__ == "__main__":
    main()
