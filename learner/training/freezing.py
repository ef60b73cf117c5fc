"""Freeze parameters into the file of a version: copy them on their devices, then write the copy while training goes on.

The copy is in the version's precision, so that only its bytes leave the devices. The parameters themselves are donated
to the next optimiser step, which may start as soon as the copy is made.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from learner.kill_points import kill_point
from learner.publishing.growth import Progress, Write
from learner.training.mesh import pieces
from rollcast.policy.config import ModelConfig
from rollcast.policy.snapshot import frozen_bits, specs_of
from rollcast.policy.stacking import Layers
from rollcast.wire.versions.tensors import TensorSpec

WRITERS = 4
"""Threads that copy shards to the host and write them."""
BAND_BYTES = 8 << 20
"""Most bytes that a thread joins from several shards before it writes them."""

_BOXES_AHEAD = 4 * WRITERS  # that wait to be written: ``progress`` may hold the writing back

Rows = np.ndarray[Any, Any]


def begin_freeze(config: ModelConfig, params: Layers, path: Path) -> Write:
    """Copy parameters on their devices as the rollout reads them, and return what writes the copy.

    The copy takes the size of a version, divided among the devices like the parameters: 2 bytes a parameter in
    bfloat16, about 1 in E4M3. Its tensors are released as they are written. The host holds one shard for each of
    `WRITERS` threads.

    If the parameters are on devices of several processes, all of these must call this with the path of the same file on
    a shared file system, and call what is returned, which writes the shards of this process. It runs no computation on
    devices, so it may be called on any thread. It raises OSError if the file cannot be written.
    """
    specs = {spec.name: spec for spec in specs_of(config, params)}
    copies: dict[str, jax.Array] = {}
    for name in params:
        copies |= frozen_bits(config, name, params.uncut(name))

    return Write(tuple(specs.values()), lambda progress: _write_shards(specs, copies, path, progress))


def gather_into(config: ModelConfig, params: Layers, file: BinaryIO | None) -> tuple[TensorSpec, ...]:
    """Write the version of parameters that lie on devices of several processes into a file that one of them has.

    All processes must call this, those without the file with None. Training waits meanwhile. Beyond the parameters this
    takes memory for a copy of one of them on its devices and for one piece of it on the host. Returns the specs of the
    tensors in the order of the bytes.

    Raises:
        OSError: the file cannot be written.
    """
    specs = {spec.name: spec for spec in specs_of(config, params)}
    for number, master in enumerate(params):
        if number == len(params) // 2:
            kill_point("version_half_written")
        for name, bits in frozen_bits(config, master, params.uncut(master)).items():
            for first_row, rows in pieces(bits):
                if file is not None:
                    _write_box(file.fileno(), specs[name], (first_row,) + (0,) * (rows.ndim - 1), rows)
    return tuple(specs.values())


def _write_shards(
    specs: Mapping[str, TensorSpec], copies: dict[str, jax.Array], path: Path, progress: Progress
) -> None:
    """Write the shards of this process into the file, tensor by tensor, and remove each copy from the dictionary."""
    with path.open("r+b") as file, ThreadPoolExecutor(WRITERS, thread_name_prefix="freeze") as pool:
        half = len(copies) // 2
        written: deque[tuple[int, list[Future[None]]]] = deque()  # the end of each tensor in the file

        def report_first() -> None:
            end_bytes, pending = written.popleft()
            for each in pending:
                each.result()
            progress(end_bytes)

        for name in sorted(copies, key=lambda name: specs[name].offset_bytes):
            boxes = _boxes(copies.pop(name))
            pending = [pool.submit(_write_parts, file.fileno(), specs[name], parts) for parts in boxes]
            del boxes
            if len(copies) == half:
                pending.append(pool.submit(kill_point, "version_half_written"))
            written.append((specs[name].offset_bytes + specs[name].size_bytes, pending))
            while sum(len(pending) for _, pending in written) > _BOXES_AHEAD:
                report_first()
        while written:
            report_first()


def _boxes(array: jax.Array) -> list[list[jax.Shard]]:
    """Return the shards that this process has to write, grouped by their rows."""
    own = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    own.sort(key=lambda shard: _start(shard.index))
    return [list(group) for _, group in itertools.groupby(own, key=lambda shard: _start(shard.index)[:1])]


def _start(index: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(each.start or 0 for each in index)


def _write_parts(descriptor: int, spec: TensorSpec, shards: list[jax.Shard]) -> None:
    """Write shards that have the same rows, joined where they are neighbours: runs of columns alone are short."""
    parts = [(_start(shard.index), np.asarray(shard.data)) for shard in shards]
    shards.clear()
    first, last = parts[0], parts[-1]
    start = first[0]
    shape = tuple(low + size - begin for low, size, begin in zip(last[0], last[1].shape, start, strict=True))
    if len(parts) == 1 or np.prod(shape) != sum(values.size for _, values in parts):
        for begin, values in parts:
            _write_box(descriptor, spec, begin, values)
        return
    for rows in _bands(shape, first[1].itemsize):
        band = np.empty((rows.stop - rows.start, *shape[1:]), first[1].dtype)
        for begin, values in parts:
            place = tuple(
                slice(low - zero, low - zero + size)
                for low, zero, size in zip(begin[1:], start[1:], values.shape[1:], strict=True)
            )
            band[(slice(None), *place)] = values[rows]
        _write_box(descriptor, spec, (start[0] + rows.start, *start[1:]), band)


def _bands(shape: tuple[int, ...], item_bytes: int) -> Iterator[slice]:
    take = max(1, BAND_BYTES // (int(np.prod(shape[1:])) * item_bytes))
    for begin in range(0, shape[0], take):
        yield slice(begin, min(begin + take, shape[0]))


def _write_box(descriptor: int, spec: TensorSpec, start: tuple[int, ...], values: Rows) -> None:
    """Write the values of a tensor from an index on to their places in the file, one call for each run of bytes."""
    values = np.ascontiguousarray(values)
    divided = [axis for axis, size in enumerate(values.shape) if size != spec.shape[axis]]
    split = divided[-1] if divided else 0  # behind this axis the values are whole, so their bytes follow each other
    strides = [values.itemsize * int(np.prod(spec.shape[axis + 1 :])) for axis in range(values.ndim)]
    origin = spec.offset_bytes + sum(first * stride for first, stride in zip(start, strides, strict=True))
    for position in np.ndindex(values.shape[:split]):
        offset = origin + sum(at * stride for at, stride in zip(position, strides, strict=False))
        _write_all(descriptor, values[position].reshape(-1).view(np.uint8).data, offset)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)  # at most 2 GiB at a time on Linux
        data, offset = data[count:], offset + count
