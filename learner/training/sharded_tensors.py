"""Tensors on devices, piece by piece in this host's memory, and frozen so into a file.

A tensor may lie on the devices of many hosts, and none of them need have room for the whole of it: so many rows of each
shard are brought together at a time, and written where they belong.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from learner.kill_points import kill_point
from learner.training.mesh import everywhere
from rollcast.policy.config import ModelConfig
from rollcast.policy.snapshot import frozen_parts, tensor_specs
from rollcast.wire.versions.tensors import TensorSpec

PIECE_BYTES = 8 << 20
"""Of a tensor that are gathered at a time, at most about so many."""

Rows = np.ndarray[Any, Any]


def freeze_into(config: ModelConfig, params: Mapping[str, Any], file: BinaryIO | None) -> tuple[TensorSpec, ...]:
    """Write what `rollcast.policy.snapshot.freeze` makes of parameters, to the bit, into a file from its start on.

    Beside the parameters there is one of them, where it lies, and one piece of it. Where they lie on several processes'
    devices, all processes must call this, those that have no file to write with None.

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
    """A copy in this host's memory; see pieces. Where nothing is to be kept of it, ask for its pieces only."""
    whole = np.empty(array.shape, array.dtype)
    for first_row, rows in pieces(array):
        if array.ndim:
            whole[first_row : first_row + len(rows)] = rows
        else:
            whole[...] = rows
    return whole


def pieces(array: Any) -> Iterator[tuple[int, Rows]]:
    """Each row of an array at least once: (first row, rows), at most about `PIECE_BYTES` at a time where it is large.

    Where the array lies on several processes' devices, all of them must ask for every piece. A piece is valid until the
    next is asked for.
    """
    if not isinstance(array, jax.Array) or (array.is_fully_replicated and _on_cpu(array)):
        yield 0, np.asarray(array)
        return
    array = _on_device(array)
    if array.nbytes <= PIECE_BYTES or not isinstance(array.sharding, NamedSharding):
        yield 0, _here(array)
        return
    own_rows = array.sharding.shard_shape(array.shape)[0]
    shards = array.shape[0] // own_rows
    take = min(own_rows, max(1, PIECE_BYTES // (array.nbytes // own_rows)))
    for start in range(0, own_rows, take):
        start = min(start, own_rows - take)
        gathered = _here(_cut(array, start, array.sharding, take))
        for shard in range(shards):
            yield shard * own_rows + start, gathered[shard * take : (shard + 1) * take]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _cut(array: jax.Array, start: int, where: NamedSharding, take: int) -> jax.Array:
    """Rows [start, start + take) of every shard, which stay where they are."""

    def rows(shard: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(shard, start, take)

    specs = (where.spec, PartitionSpec())
    return jax.shard_map(rows, mesh=where.mesh, in_specs=specs, out_specs=where.spec)(array, start)


def _here(array: jax.Array) -> Rows:
    """The whole of a small array in this host's memory."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array.addressable_data(0) if array.is_fully_replicated else array)
    return np.asarray(everywhere(array).addressable_data(0))


def _on_device(array: jax.Array) -> jax.Array:
    """The array, brought back from its devices' hosts if it was put there."""
    usual = next(iter(array.devices())).default_memory().kind
    return (
        array if array.sharding.memory_kind == usual else jax.device_put(array, array.sharding.with_memory_kind(usual))
    )


def _on_cpu(array: jax.Array) -> bool:
    return bool(next(iter(array.devices())).platform == "cpu")
