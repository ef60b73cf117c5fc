"""Copy tensors from devices to this host's memory piece by piece, and freeze them into a file that way.

A tensor may be divided among the devices of many hosts, none of which could hold all of it: some rows of each shard
are gathered at a time and written to their places in the file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from learner.kill_points import kill_point
from learner.training import mesh
from learner.training.mesh import everywhere, rows_at_a_time
from rollcast.policy.config import ModelConfig
from rollcast.policy.snapshot import frozen_parts, tensor_specs
from rollcast.wire.versions.tensors import TensorSpec

Rows = np.ndarray[Any, Any]


def freeze_into(config: ModelConfig, params: Mapping[str, Any], file: BinaryIO | None) -> tuple[TensorSpec, ...]:
    """Write the bits that `rollcast.policy.snapshot.freeze` makes of parameters into a file, from its start on.

    Beyond the parameters this takes memory for a copy of one of them on its devices and for one piece of it on the
    host. If the parameters are on devices of several processes, all of these must call this; those without a file to
    write pass None. Returns the specs of the tensors in the order of the bytes.

    Raises:
        OSError: the file cannot be written.
    """
    specs = {spec.name: spec for spec in tensor_specs(config)}
    for number, master in enumerate(sorted(params)):
        if number == len(params) // 2:
            kill_point("version_half_written")
        for name, part in frozen_parts(config, master, params[master]):
            for first_row, rows in pieces(part.value):
                if file is not None:
                    _write(file, specs[name], first_row, rows.astype(part.dtype, copy=False))
    return tuple(specs.values())


def _write(file: BinaryIO, spec: TensorSpec, first_row: int, rows: Rows) -> None:
    row_bytes = spec.size_bytes // spec.shape[0] if spec.shape else 0
    file.seek(spec.offset_bytes + first_row * row_bytes)
    file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


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
