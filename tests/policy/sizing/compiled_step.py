"""Print XLA's memory figures of compiled gradient steps: a JSON list of bytes besides arguments and results.

Run with XLA's memory-saving scheduler, which is the one that accelerators have; it is set for a whole process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.logits import Tiles
from rollcast.policy.logprobs import Forward, completion_logprobs
from rollcast.policy.params import abstract_params
from rollcast.policy.stacking import stacked

ROWS, TIME, TILE = 8, 64, 1 << 12


def temporary_bytes(model: ModelConfig, *, remat: bool) -> int:
    def loss(params: Any, tokens: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        ones = jax.numpy.ones(ROWS)
        forward = Forward(remat=remat, tiles=Tiles(elements=TILE))
        return completion_logprobs(model, params, tokens, positions, segments, ones, forward=forward).logprobs.sum()

    def add(params: Any, total: Any, *arrays: jax.Array) -> Any:
        value, pull = jax.vjp(lambda own: loss(own, *arrays), params)
        sums = jax.tree.map(jax.new_ref, total)
        pull.with_refs(sums)(jax.numpy.ones_like(value))
        return jax.tree.map(jax.freeze, sums)

    params = jax.eval_shape(stacked, abstract_params(model))
    array = jax.ShapeDtypeStruct((ROWS, TIME), np.int32)
    compiled = jax.jit(add, donate_argnums=1).lower(params, params, array, array, array).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


def main() -> None:
    cases = json.loads(sys.argv[1])
    print(json.dumps([temporary_bytes(ModelConfig(**case["model"]), remat=case["remat"]) for case in cases]))


if __name__ == "__main__":
    main()
