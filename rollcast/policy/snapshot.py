"""Snapshots: the parameters exactly as the rollout's forward pass reads them, as bytes.

`freeze` rounds the learner's masters to the configured precision once; everybody then reads those same bytes. Tensors
follow each other without gaps, in sorted order of their names, row-major and little-endian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params, abstract_params
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.tensors import TensorSpec

# Our dtype tags (TensorSpec.dtype), the same as the names in ModelConfig.precision.
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a version's state is: specs in the order of the bytes, and the bytes."""

    tensors: tuple[TensorSpec, ...]
    state_bytes: bytes


def freeze(config: ModelConfig, params: Params) -> Snapshot:
    """Copy parameters (any device) out as a snapshot in the configured precision."""
    dtype = _DTYPES[config.precision]
    specs: list[TensorSpec] = []
    pieces: list[bytes] = []
    offset_bytes = 0
    for name, value in sorted(jax.device_get(params).items()):
        piece = np.asarray(value).astype(dtype, copy=False).tobytes()
        specs.append(TensorSpec(name, config.precision, tuple(value.shape), offset_bytes, len(piece)))
        pieces.append(piece)
        offset_bytes += len(piece)
    return Snapshot(tuple(specs), b"".join(pieces))


def tensor_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """The specs that a snapshot of this architecture must have."""
    specs: list[TensorSpec] = []
    offset_bytes = 0
    for name, leaf in sorted(abstract_params(config).items()):
        size_bytes = math.prod(leaf.shape) * _DTYPES[config.precision].itemsize
        specs.append(TensorSpec(name, config.precision, tuple(leaf.shape), offset_bytes, size_bytes))
        offset_bytes += size_bytes
    return tuple(specs)


def thaw(config: ModelConfig, tensors: Sequence[TensorSpec], state_bytes: Any) -> Params:
    """Parameters on the default device from a state (bytes, memoryview or memory map).

    On a CPU the result may share memory with ``state_bytes``, which must not change afterwards.

    Raises:
        MalformedMessage: the tensors or the size are not those of this architecture.
    """
    if tuple(tensors) != tensor_specs(config):
        raise MalformedMessage(
            "the version's tensors are not those of its model",
            cause="names, dtypes, shapes or offsets differ from what the model configuration gives",
            fix="run the same release on the learner and on the peers",
        )
    size_bytes = sum(spec.size_bytes for spec in tensors)
    buffer = memoryview(state_bytes).cast("B")
    if len(buffer) != size_bytes:
        raise MalformedMessage(f"a state of {len(buffer)} bytes, expected {size_bytes}")
    views = {spec.name: _view(buffer, spec) for spec in tensors}
    params: Params = jax.device_put(views)
    return params


def _view(buffer: memoryview, spec: TensorSpec) -> np.ndarray[Any, Any]:
    dtype = _DTYPES[spec.dtype]
    count = spec.size_bytes // dtype.itemsize
    return np.frombuffer(buffer, dtype, count, spec.offset_bytes).reshape(spec.shape)
