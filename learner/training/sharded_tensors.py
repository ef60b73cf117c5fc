"""Copy tensors from devices to this host's memory piece by piece.

A tensor may be divided among the devices of many hosts, none of which could hold all of it: some rows of each shard
are gathered at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from learner.training import mesh
from learner.training.mesh import everywhere, rows_at_a_time

Rows = np.ndarray[Any, Any]


def gathered(array: jax.Array) -> Rows:
    """Return a copy of the whole array in this host's memory.

    If several processes hold the array, all must take part; one that needs no copy iterates over `pieces` instead.
    """
    whole = np.empty(array.shape, array.dtype)
    for first_row, rows in pieces(array):
        if array.ndim:
            whole[first_row : first_row + len(rows)] = rows
        else:
            whole[...] = rows
    return whole


def pieces(array: Any) -> Iterator[tuple[int, Rows]]:
    """Yield each row of an array at least once as (first row, rows), in pieces of at most about `PIECE_BYTES`.

    If the array is on devices of several processes, all of them must iterate over every piece. A piece is valid until
    the next one is requested.
    """
    if not isinstance(array, jax.Array) or (array.is_fully_replicated and _on_cpu(array)):
        yield 0, np.asarray(array)
        return
    array = _on_device(array)
    if array.nbytes <= mesh.PIECE_BYTES or not isinstance(array.sharding, NamedSharding):
        yield 0, _here(array)
        return
    own_rows, take = rows_at_a_time(array, array.sharding)
    shards = array.shape[0] // own_rows
    for start in range(0, own_rows, take):
        start = min(start, own_rows - take)
        gathered = _here(_cut(array, start, array.sharding, take))
        for shard in range(shards):
            yield shard * own_rows + start, gathered[shard * take : (shard + 1) * take]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _cut(array: jax.Array, start: int, where: NamedSharding, take: int) -> jax.Array:
    """Return rows [start, start + take) of every shard, each on the shard's own device."""

    def rows(shard: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(shard, start, take)

    specs = (where.spec, PartitionSpec())
    return jax.shard_map(rows, mesh=where.mesh, in_specs=specs, out_specs=where.spec)(array, start)


def _here(array: jax.Array) -> Rows:
    """Return all of a small array in this host's memory."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array.addressable_data(0) if array.is_fully_replicated else array)
    return np.asarray(everywhere(array).addressable_data(0))


def _on_device(array: jax.Array) -> jax.Array:
    """Return the array in its devices' default memory, also if it was offloaded to their hosts' memory."""
    usual = next(iter(array.devices())).default_memory().kind
    return (
        array if array.sharding.memory_kind == usual else jax.device_put(array, array.sharding.with_memory_kind(usual))
    )


def _on_cpu(array: jax.Array) -> bool:
    return bool(next(iter(array.devices())).platform == "cpu")
