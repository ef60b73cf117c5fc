"""Prepare the change from one version to another in the coordinates of vLLM's own parameters.

vLLM's workers say once where each tensor of a checkpoint lies in their memory (server/placement.py). From then on the
peer compares the states of two versions and writes, for every worker, which elements of which parameter get which
value. A worker then only writes them: it maps no names, cuts no tensors and transposes nothing while generation waits.

Comparing takes the versions as they are on disk, so it does not matter how many versions lie between them, or whether
the newer one came as a delta.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Items = np.ndarray[tuple[int], np.dtype[Any]]

CHANGED_SHARE_MAX = 0.1
"""Largest share of changed elements for which a patch is prepared.

An element of a patch is written alone, at an index of 4 bytes: beyond a tenth, writing whole tensors is as fast.
"""

_COMPARED_ITEMS = 1 << 22  # compared at a time, so that little memory is needed beside the states
_INDEX_MAX = np.iinfo(np.int32).max
_ALIGN_BYTES = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a version, as the table of a checkpoint describes it (peer.engines.vllm.checkpoint).

    Args:
        names: the Hub's names: one, or one for each expert of a tensor [experts, inputs, outputs].
        shape: as published.
        transposed: whether the Hub stores the matrices as [outputs, inputs].
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    transposed: bool

    @property
    def items(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of a tensor of the checkpoint, and the place of its elements in a parameter of one worker.

    Args:
        starts, sizes: the rectangle, [rows, columns] of the Hub's tensor; a vector is a matrix of one column.
        target: number of the parameter.
        offset, strides: the element of the parameter's memory that holds the rectangle's first one, and how far apart
            its rows and columns are there, in elements.
    """

    starts: tuple[int, int]
    sizes: tuple[int, int]
    target: int
    offset: int
    strides: tuple[int, int]

    def located(self, rows: Integers, columns: Integers) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], Integers]:
        """Return which of these elements of the tensor are in the rectangle, and those elements' target indices."""
        row, column = rows - self.starts[0], columns - self.starts[1]
        inside = (row >= 0) & (row < self.sizes[0]) & (column >= 0) & (column < self.sizes[1])
        return inside, self.offset + row[inside] * self.strides[0] + column[inside] * self.strides[1]


def checkpoint_position(tensor: Tensor, indices: Integers) -> tuple[Integers, Integers, Integers]:
    """Return for flat indices into a tensor as published which of its ``names`` has them, and row and column there."""
    if len(tensor.shape) == 1:
        return np.zeros_like(indices), indices, np.zeros_like(indices)
    first, second = tensor.shape[-2:]
    expert, within = np.divmod(indices, first * second)
    row, column = np.divmod(within, second)
    return (expert, column, row) if tensor.transposed else (expert, row, column)


def read_table(path: Path) -> tuple[Tensor, ...]:
    """Read the table of a checkpoint."""
    return tuple(
        Tensor(
            tuple(one["names"]),
            one["dtype"],
            tuple(one["shape"]),
            one["offset_bytes"],
            one["size_bytes"],
            one["transposed"],
        )
        for one in json.loads(path.read_text())
    )


def read_placement(path: Path) -> dict[str, list[Part]]:
    """Read where one worker has the tensors of a checkpoint, by their names on the Hub."""
    return {
        name: [
            Part(_pair(starts), _pair(sizes), target, offset, _pair(strides))
            for starts, sizes, target, offset, strides in parts
        ]
        for name, parts in json.loads(path.read_text()).items()
    }


def changed_items(old: memoryview, new: memoryview, tensor: Tensor) -> Iterator[tuple[Integers, Items]]:
    """Yield the flat indices of a tensor's changed elements, ascending, with their new values as unsigned integers."""
    item_bytes = tensor.size_bytes // tensor.items
    dtype = np.dtype(f"<u{item_bytes}")
    end = tensor.offset_bytes + tensor.size_bytes
    before, after = (np.frombuffer(state[tensor.offset_bytes : end], dtype) for state in (old, new))
    for start in range(0, tensor.items, _COMPARED_ITEMS):
        stretch = slice(start, start + _COMPARED_ITEMS)
        found = np.flatnonzero(before[stretch] != after[stretch]).astype(np.int64)
        if len(found):
            yield found + start, after[stretch][found]


@dataclass(frozen=True, slots=True)
class PatchSize:
    """What a patch holds.

    Args:
        changed: elements of the state that changed.
        bytes_moved: indices and values that are moved to the devices, of all workers together.
    """

    changed: int
    bytes_moved: int


def write_patch(
    old: memoryview,
    new: memoryview,
    tensors: Sequence[Tensor],
    placements: Sequence[dict[str, list[Part]]],
    files: Sequence[Path],
) -> PatchSize | None:
    """Write for each worker the elements that change from one state to the other.

    A file has 32-bit indices and values for one parameter after the other; FILE.json lists them: number of the
    parameter, elements, offset of the indices and of the values in bytes, and dtype of the values.

    Args:
        placements, files: of each worker, in the order of their ranks.

    Returns:
        What was written; None if so much changes that whole tensors should be written instead.

    Raises:
        OSError: the disk refuses.
        KeyError: a worker has not placed one of the tensors.
    """
    most = CHANGED_SHARE_MAX * sum(tensor.items for tensor in tensors)
    changed = moved = 0
    writers = [_PatchFile(path) for path in files]
    try:
        for tensor in tensors:
            for indices, values in changed_items(old, new, tensor):
                changed += len(indices)
                if changed > most:
                    return None
                expert, rows, columns = checkpoint_position(tensor, indices)
                for number, name in enumerate(tensor.names):
                    mine = slice(None) if len(tensor.names) == 1 else expert == number
                    for writer, placement in zip(writers, placements, strict=True):
                        moved += writer.add(placement[name], rows[mine], columns[mine], values[mine], tensor.dtype)
        for writer in writers:
            writer.finish()
    finally:
        for writer in writers:
            writer.close()
    return PatchSize(changed, moved)


class _PatchFile:
    """The elements that change on one worker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._entries: list[dict[str, Any]] = []

    def add(self, parts: Iterable[Part], rows: Integers, columns: Integers, values: Items, dtype: str) -> int:
        """Append the elements of one tensor that this worker has; return the bytes of their indices and values."""
        moved = 0
        for part in parts:
            inside, at = part.located(rows, columns)
            moved += self._add(part.target, at, values[inside], dtype)
        return moved

    def _add(self, target: int, indices: Integers, values: Items, dtype: str) -> int:
        if not len(indices):
            return 0
        if int(indices.max()) > _INDEX_MAX:
            raise ValueError(f"parameter {target} has more elements than 32-bit indices reach")
        order = np.argsort(indices)  # a processor writes ascending elements several times as fast
        places = [self._append(array) for array in (indices[order].astype("<i4"), values[order])]
        entry = {"target": target, "count": len(indices), "indices_at": places[0], "values_at": places[1]}
        self._entries.append(entry | {"dtype": dtype})
        return len(indices) * (4 + values.itemsize)

    def finish(self) -> None:
        """Write the list of what the file has."""
        list_path(self._path).write_text(json.dumps(self._entries))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, array: np.ndarray[Any, Any]) -> int:
        at = self._file.tell()
        data = np.ascontiguousarray(array).tobytes()
        self._file.write(data + bytes(-len(data) % _ALIGN_BYTES))
        return at


def list_path(patch: Path) -> Path:
    """Return the path of the list of a patch's entries."""
    return patch.with_name(f"{patch.name}.json")


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return first, second
