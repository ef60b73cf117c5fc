"""Lay the tensors of a version out in its state: one after the other, in the order of the table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.checks import require
from rollcast.wire.proto import rollcast_pb2 as pb

ITEM_SIZE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Every dtype that a state may hold; little-endian."""

_TENSOR_NAME = re.compile(rf"[a-z0-9._/-]{{1,{limits.TENSOR_NAME_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The place of one tensor in the state."""

    name: str
    dtype: str  # a key of ITEM_SIZE_BYTES
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


def tensor_table(tensors: Iterable[tuple[str, str, Sequence[int]]]) -> tuple[TensorSpec, ...]:
    """Return the specs of tensors (name, dtype, shape) laid out one after the other.

    Raises:
        MalformedMessage: a dtype cannot be part of a version.
    """
    specs = []
    offset = 0
    for name, dtype, shape in tensors:
        if dtype not in ITEM_SIZE_BYTES:
            raise MalformedMessage(f"dtype {dtype!r} of tensor {name!r} cannot be part of a version")
        size = math.prod(shape) * ITEM_SIZE_BYTES[dtype]
        specs.append(TensorSpec(name, dtype, tuple(shape), offset, size))
        offset += size
    return tuple(specs)


def tensors_from_pb(message: pb.VersionRecord) -> tuple[TensorSpec, ...]:
    """Return the specs of a received record, checking every bound.

    Raises:
        MalformedMessage: a name, dtype or shape is out of range, or the tensors do not fill the state.
    """
    require(1 <= len(message.tensors) <= limits.TENSORS_MAX, "number of tensors out of range")
    tensors = []
    end = 0
    for tensor in message.tensors:
        require(_TENSOR_NAME.fullmatch(tensor.name) is not None, "a tensor's name is malformed")
        require(tensor.dtype in ITEM_SIZE_BYTES, f"tensor {tensor.name}: unknown dtype")
        require(len(tensor.shape) <= limits.TENSOR_RANK_MAX, f"tensor {tensor.name}: too many dimensions")
        size = math.prod(tensor.shape) * ITEM_SIZE_BYTES[tensor.dtype]
        require(size == tensor.size_bytes > 0, f"tensor {tensor.name}: size does not fit its shape")
        require(tensor.offset_bytes == end, f"tensor {tensor.name}: does not begin where the one before ends")
        tensors.append(TensorSpec(tensor.name, tensor.dtype, tuple(tensor.shape), end, size))
        end += size
    require(end == message.state_size_bytes, "the tensors do not fill the state")
    require(len({tensor.name for tensor in tensors}) == len(tensors), "a tensor's name occurs twice")
    return tuple(tensors)
