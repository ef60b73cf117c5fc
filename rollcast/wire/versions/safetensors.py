"""Parse headers of safetensors files and of their shard indices, and find a version's state in such files. Pure.

A file is an 8-byte little-endian length, a JSON header of that length, then the tensors' bytes. Names, dtypes, shapes
and offsets come from an untrusted file: they are checked, and tensors that do not fit are left out.
Source: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.checks import require
from rollcast.wire.limits import COUNTER_MAX, TENSOR_RANK_MAX, TENSORS_MAX
from rollcast.wire.versions.chunks import bitmap_add, new_bitmap
from rollcast.wire.versions.records import Manifest
from rollcast.wire.versions.tensors import ITEM_SIZE_BYTES, TensorSpec

LENGTH_BYTES = 8
"""Bytes before the header that hold its length."""
HEADER_BYTES_MAX = 16 << 20
"""Bytes of a header or an index: 65,536 tensors need less. Parsed hostile JSON takes some 20 times that in Python."""
SHARDS_MAX = 4096
"""Files of one index."""

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_ALIGNMENT_BYTES = 8  # readers map the file and need tensors to be aligned


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place of one tensor in its file; ``start_bytes`` counts from the beginning of the file."""

    dtype: str  # a key of ITEM_SIZE_BYTES
    shape: tuple[int, ...]
    start_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of the state, and where it is in a file.

    Args:
        start_bytes: offset in the file, or in the bytes of the transposed matrix.
        transposed: the matrix in the file whose transpose has the bytes; None: the file has them as they are.
    """

    file: str
    start_bytes: int
    size_bytes: int
    transposed: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class OtherName:
    """What a file calls a tensor of the record, and whether it stores its transpose."""

    name: str
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    state_start_bytes: int
    piece: Piece


def header_length(prefix: bytes) -> int:
    """Return the length in bytes of the header that follows the first 8 bytes of a file.

    Raises:
        MalformedMessage: the file is not safetensors, or its header is too long.
    """
    require(len(prefix) == LENGTH_BYTES, "a safetensors file without a header")
    length: int = struct.unpack("<Q", prefix)[0]
    require(2 <= length <= HEADER_BYTES_MAX, f"a safetensors header of {length} bytes")
    return length


def parse_header(header: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name, without those whose dtype cannot be part of a version.

    Raises:
        MalformedMessage: the bytes are not a safetensors header.
    """
    entries = _json_object(header)
    require(len(entries) <= TENSORS_MAX + 1, "a safetensors header with too many tensors")
    data_start = LENGTH_BYTES + len(header)
    tensors = {}
    for name, entry in entries.items():
        if name != "__metadata__":
            tensor = _parse_entry(name, entry, data_start)
            if tensor is not None:
                tensors[name] = tensor
    return tensors


def format_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Return length and header of a file with these tensors (name, dtype, shape), laid out one after the other."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * ITEM_SIZE_BYTES[dtype]
        entries[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return struct.pack("<Q", len(text)) + text


def parse_index(index: bytes) -> tuple[str, ...]:
    """Return the files that a ``model.safetensors.index.json`` names, all in its own folder, sorted.

    Raises:
        MalformedMessage: the bytes are not such an index, or the index names files in other folders.
    """
    weight_map = _json_object(index).get("weight_map")
    require(isinstance(weight_map, dict) and len(weight_map) <= TENSORS_MAX, "a safetensors index without weight_map")
    assert isinstance(weight_map, dict)
    files: set[str] = set()
    for file in weight_map.values():
        require(isinstance(file, str) and _is_plain_name(file), "a safetensors index names files elsewhere")
        files.add(file)
    require(1 <= len(files) <= SHARDS_MAX, "a safetensors index with too many files")
    return tuple(sorted(files))


class StateMap:
    """A map from a version's state to the files that hold the same bytes.

    Args:
        specs: the tensors of the version's record, in order.
        files: the tensors of each file by their names in it.
        names: what files may call a tensor besides the record's name for it.
    """

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        files: Mapping[str, Mapping[str, StoredTensor]],
        names: Mapping[str, OtherName] | None = None,
    ) -> None:
        found = {name: (file, tensor) for file, tensors in files.items() for name, tensor in tensors.items()}
        self._places: list[_Place] = []
        for spec in specs:
            for one in (OtherName(spec.name), (names or {}).get(spec.name)):
                file, tensor = found.get(one.name, ("", None)) if one is not None else ("", None)
                turned = one is not None and one.transposed
                shape = spec.shape[::-1] if turned else spec.shape
                if tensor is not None and (tensor.dtype, tensor.shape) == (spec.dtype, shape):
                    start = 0 if turned else tensor.start_bytes
                    piece = Piece(file, start, spec.size_bytes, tensor if turned else None)
                    self._places.append(_Place(spec.offset_bytes, piece))
                    break
        self._starts = [place.state_start_bytes for place in self._places]

    @property
    def tensors_found(self) -> int:
        """Return how many tensors of the state the files hold with the same dtype and shape."""
        return len(self._places)

    def pieces(self, start: int, stop: int) -> list[Piece] | None:
        """Return the pieces to read for bytes [start, stop) of the state, in order; None if the files lack some of
        it."""
        pieces = []
        at = start
        while at < stop:
            place = self._place_of(at)
            if place is None:
                return None
            skipped = at - place.state_start_bytes
            size = min(stop - at, place.piece.size_bytes - skipped)
            pieces.append(replace(place.piece, start_bytes=place.piece.start_bytes + skipped, size_bytes=size))
            at += size
        return pieces

    def chunks(self, manifest: Manifest) -> bytes:
        """Return the bitmap of those chunks of a keyframe that lie completely in the files."""
        bitmap = new_bitmap(manifest.chunk_count)
        for index in range(manifest.chunk_count):
            if self.pieces(*manifest.chunk_range(index)) is not None:
                bitmap_add(bitmap, index)
        return bytes(bitmap)

    def _place_of(self, at: int) -> _Place | None:
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            return None
        place = self._places[index]
        return place if at < place.state_start_bytes + place.piece.size_bytes else None


def _json_object(data: bytes) -> dict[str, Any]:
    require(len(data) <= HEADER_BYTES_MAX, "a safetensors header or index is too long")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedMessage("a safetensors header or index is not JSON") from None
    require(isinstance(value, dict), "a safetensors header or index is not a JSON object")
    assert isinstance(value, dict)
    return value


def _parse_entry(name: str, entry: Any, data_start: int) -> StoredTensor | None:
    problem = f"tensor {name[:100]!r} of a safetensors header is malformed"
    require(isinstance(entry, dict), problem)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    require(isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2, problem)
    if dtype not in _DTYPES or len(shape) > TENSOR_RANK_MAX:
        return None
    start, stop = offsets
    size = math.prod(shape) * ITEM_SIZE_BYTES[_DTYPES[dtype]]
    require(stop - start == size, problem)
    return StoredTensor(_DTYPES[dtype], tuple(shape), data_start + start, size)


def _are_sizes(values: Any) -> bool:
    # bool is an int to isinstance.
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= COUNTER_MAX for value in values)


def _is_plain_name(file: str) -> bool:
    return 0 < len(file) <= 255 and not file.startswith(".") and not set(file) & set("/\\?#%:\0")
