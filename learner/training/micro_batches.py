"""Process a batch in micro-batches that fit into memory: gradients are summed, forward passes run one by one.

All micro-batches of one kind have the same shape, so that each kind compiles once, however many rows a batch has. The
last one is filled up with empty rows: segment 0, weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner.config import LearnerConfig
from learner.training.mesh import placed, row_shards, rows_sharding
from learner.training.packing import PackedBatch
from rollcast.policy.logits import Tiles
from rollcast.policy.logprobs import Forward
from rollcast.policy.mesh import TENSOR, params_shardings
from rollcast.policy.params import Params

# Most rows of one forward pass. A batch holds rows of several versions in varying shares: passes of one fixed size
# compile once, and waste half a pass per version on average.
FORWARD_ROWS = 32

# Logits computed at a time on a device: 64 MiB of float32; on a CPU 8 MiB, which fit into its caches (a fifth faster
# than 64).
_TILE, _CPU_TILE = 1 << 24, 1 << 21

_ROUTES = jax.tree_util.DictKey("routes")

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
# (metrics to be added up, tree of values f32 [rows, time] to be kept)
Side = tuple[dict[str, jax.Array], Any]
Loss = Callable[[Params, Any, int], tuple[jax.Array, Side]]


class Sums(NamedTuple):
    """What a loss gives over a batch."""

    gradients: Params  # shaped like the parameters
    metrics: dict[str, jax.Array]  # scalars
    values: list[Any]  # of each micro-batch, the tree of values that the loss keeps; the last one has rows of padding


class Gradients:
    """Gradients and metrics, over a batch of any size, of a loss that is a sum over rows.

    Args:
        loss: (parameters, tree of arrays [rows, ...], sequences per row) -> the rows' share of the loss, and the rows'
            share of each metric with values of their tokens.
        mesh: the device mesh of parameters and rows.
        micro_batch_tokens: most tokens of a micro-batch, padding included.
    """

    def __init__(self, loss: Loss, mesh: Mesh, micro_batch_tokens: int) -> None:
        self._mesh = mesh
        self._micro_batch_tokens = micro_batch_tokens
        self._loss = loss
        self.add = jax.jit(self._add_part, donate_argnums=1, static_argnums=3)
        """(parameters, sums so far, micro-batch, sequences per row, frozen base if there is one) -> sums with its
        gradients, and its side values."""
        self._zeros = jax.jit(self._nothing)

    def of(self, params: Params, whole: Any, sequences_per_row: int, base: Params | None = None) -> Sums:
        """Return gradients and metrics of a batch, and the values that the loss keeps of each token.

        Args:
            base: parameters that the loss reads besides ``params``, and that get no gradients; None: it reads no other.
            whole: tree of host arrays [rows, ...] of the whole batch.
        """
        total: Params = self._zeros(params)
        sides: list[Side] = []
        rows, time = jax.tree.leaves(whole)[0].shape[:2]
        vary = sequences_per_row > 1
        each = rows_each(rows, time, self._micro_batch_tokens, row_shards(self._mesh), vary=vary)
        for part in parts(whole, each, self._mesh):
            total, side = self.add(params, total, part, sequences_per_row, base)
            sides.append(side)
        metrics = [metrics for metrics, _ in sides]
        summed: dict[str, jax.Array] = jax.tree.map(lambda *leaves: jnp.sum(jnp.stack(leaves)), *metrics)
        return Sums(total, summed, [values for _, values in sides])

    def _nothing(self, params: Params) -> Params:
        zeros = jax.tree.map(jnp.zeros_like, params)
        placed: Params = jax.lax.with_sharding_constraint(zeros, params_shardings(self._mesh, params))
        return placed

    def _add_part(
        self, params: Params, total: Params, part: Any, sequences_per_row: int, base: Params | None = None
    ) -> tuple[Params, Side]:
        rows = jax.lax.with_sharding_constraint(part, rows_sharding(self._mesh))
        # Each tensor's gradient is added to its sum where it is computed, a layer at a time: those of all layers
        # together, as the loop over layers would return them, are as large as the parameters.
        sums = jax.tree.map(jax.new_ref, total)
        with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):  # for kernels that XLA cannot divide by itself
            value, pull, (metrics, values) = jax.vjp(
                lambda own: self._loss((base or {}) | own, rows, sequences_per_row), params, has_aux=True
            )
            pull.with_refs(sums)(jnp.ones_like(value))
        added = jax.tree.map(jax.freeze, sums)
        # Few numbers a token, and every process can read them where each device has them all.
        kept = jax.lax.with_sharding_constraint(values, NamedSharding(self._mesh, PartitionSpec()))
        return jax.lax.with_sharding_constraint(added, params_shardings(self._mesh, params)), (metrics, kept)


class ForwardPasses:
    """Apply a function of parameters and `inputs` to a batch of any size; the result is a tree of f32 [rows, time]."""

    def __init__(self, function: Callable[[Params, dict[str, Any]], Any], mesh: Mesh, micro_batch_tokens: int) -> None:
        self._function = function
        self._mesh = mesh
        self._micro_batch_tokens = micro_batch_tokens
        self.one_pass = jax.jit(self._run)
        """(parameters, `inputs` of one pass's rows) -> the function's values, on every device."""

    def __call__(self, params: Params, batch: PackedBatch) -> Any:
        rows, time = batch.tokens.shape
        shards = row_shards(self._mesh)
        each = -(-min(FORWARD_ROWS, max(1, self._micro_batch_tokens // time)) // shards) * shards
        found = [self.one_pass(params, part) for part in parts(inputs(batch), each, self._mesh)]
        return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(one) for one in leaves])[:rows], *found)

    def _run(self, params: Params, arrays: dict[str, Any]) -> Any:
        rows = jax.lax.with_sharding_constraint(arrays, rows_sharding(self._mesh))
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
            values = self._function(params, rows)
        return jax.lax.with_sharding_constraint(values, everywhere)


def parts(whole: Any, each: int, mesh: Mesh) -> Iterator[Any]:
    """Split a tree of host arrays [rows, ...] into trees of ``each`` rows; the last one is filled up with zeros.

    Routes are placed on the devices: of several processes only the leader has them (learner.distributed.leader).
    """
    rows = jax.tree.leaves(whole)[0].shape[0]
    for start in range(0, rows, each):
        missing = max(0, start + each - rows)

        def cut(leaf: Any, start: int = start, missing: int = missing) -> Any:
            piece = leaf[start : start + each]
            return np.pad(piece, ((0, missing),) + ((0, 0),) * (leaf.ndim - 1)) if missing else piece

        def own(path: tuple[Any, ...], leaf: Any) -> Any:
            return placed(leaf, rows_sharding(mesh)) if path[-1:] == (_ROUTES,) else leaf

        yield jax.tree.map_with_path(own, jax.tree.map(cut, whole))


def rows_each(rows: int, time: int, micro_batch_tokens: int, shards: int, *, vary: bool) -> int:
    """Return the rows of a micro-batch, a multiple of ``shards``: as many as fit into memory, or fewer if the rows then
    divide evenly.

    Args:
        vary: whether the next batch may have another number of rows; then the result does not depend on it, so that
            nothing is compiled anew.
    """
    most = max(1, micro_batch_tokens // time // shards) * shards
    if vary:
        return most
    even = -(-rows // -(-rows // most))
    return min(most, -(-even // shards) * shards)


def forward_of(config: LearnerConfig, mesh: Mesh) -> Forward:
    """Return how this configuration computes a forward pass on this mesh."""
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    elements, remat, packed = _CPU_TILE if on_cpu else _TILE, config.remat == "blocks", config.packed_row_tokens > 0
    if mesh.size == 1:
        return Forward(remat, Tiles(elements), packed=packed)
    tiles = Tiles(elements, vocabulary_shards=mesh.shape[TENSOR], mesh=mesh)
    return Forward(remat, tiles, rows_sharding(mesh), packed=packed)


def inputs(batch: PackedBatch) -> dict[str, Any]:
    """Return the arrays that the forward pass reads."""
    arrays = {
        "tokens": batch.tokens,
        "positions": batch.positions,
        "segments": batch.segments,
        "temperature": batch.temperature,
        "seeds": batch.seeds,
    }
    return arrays if batch.routes is None else arrays | {"routes": batch.routes}
