"""A batch in parts that fit into memory: gradients added up, forward passes one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.packing import PackedBatch
from rollcast.policy.params import Params

# Rows of one forward pass. A batch holds rows of several versions in varying shares: passes of one fixed size compile
# once and waste half a pass a version on average.
FORWARD_ROWS = 32

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
Loss = Callable[[Params, Any], tuple[jax.Array, dict[str, jax.Array]]]


def added_gradients(
    loss: Loss, params: Params, whole: Any, micro_batch_rows: int
) -> tuple[Params, dict[str, jax.Array]]:
    """Gradients of a loss that adds up over rows, and its metrics; for use inside jit.

    whole: tree of arrays [rows, ...], split evenly into parts of at most ``micro_batch_rows`` rows.
    """
    rows = jax.tree.leaves(whole)[0].shape[0]
    parts = rows // _largest_divisor(rows, micro_batch_rows)
    micro_batches = jax.tree.map(lambda leaf: leaf.reshape(parts, rows // parts, *leaf.shape[1:]), whole)
    gradient = jax.grad(loss, has_aux=True)

    def accumulate(total: Any, micro_batch: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient(params, micro_batch)), None

    part = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), micro_batches)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(gradient, params, part))
    total: tuple[Params, dict[str, jax.Array]] = jax.lax.scan(accumulate, nothing, micro_batches)[0]
    return total


def forward(function: Callable[[Params, dict[str, Any]], jax.Array], params: Params, batch: PackedBatch) -> FloatArray:
    """A compiled function of parameters and `inputs` for every row, in passes of one size; f32 [rows, time]."""
    rows = batch.tokens.shape[0]
    result = np.zeros(batch.tokens.shape, np.float32)
    for start in range(0, rows, FORWARD_ROWS):
        # The last pass repeats its last row to keep the shape.
        indices = np.minimum(np.arange(start, start + FORWARD_ROWS), rows - 1)
        part = np.asarray(function(params, inputs(batch.select(indices))))
        result[start : start + FORWARD_ROWS] = part[: rows - start]
    return result


def inputs(batch: PackedBatch) -> dict[str, Any]:
    """What the forward pass reads."""
    return {
        "tokens": batch.tokens,
        "positions": batch.positions,
        "segments": batch.segments,
        "temperature": batch.temperature,
    }


def _largest_divisor(rows: int, most: int) -> int:
    return next(size for size in range(min(rows, most), 0, -1) if rows % size == 0)
