"""Save weights in the Hugging Face Hub's format: safetensors files cut by size, an index and a config.json."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import ml_dtypes
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.config import write_config
from rollcast.policy.hub.names import hf_names, hf_shape, is_transposed
from rollcast.policy.params import Params
from rollcast.policy.shapes import parameter_shapes
from rollcast.runtime.errors import ModelError
from rollcast.runtime.run_folder import fsync_folder
from rollcast.wire.text.model_folder import CONFIG, INDEX, WEIGHTS
from rollcast.wire.versions.safetensors import format_header

FileDtype = Literal["bfloat16", "float32"]

FILE_BYTES_MAX = 5 * 10**9
"""The largest size of one file, unless a single tensor is larger; the Hub's own tools cut there too."""

FILE_DTYPES: dict[FileDtype, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    tensors: tuple[str, ...]  # our names of the file's tensors


def save_model(
    config: ModelConfig,
    params: Params,
    folder: Path,
    dtype: FileDtype = "bfloat16",
    *,
    base_config: Mapping[str, Any] | None = None,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> int:
    """Write weights, index and config.json into a folder that exists; returns the bytes of the weights.

    One tensor at a time leaves the device. params: float arrays by our names. base_config: further keys of config.json.

    Raises:
        ModelError: a parameter is missing, the disk refuses, or no published architecture is like this one.
    """
    described = write_config(config, dtype, base_config)
    shapes = parameter_shapes(config)
    if set(shapes) != set(params):
        odd = sorted(set(shapes) ^ set(params))
        raise ModelError(f"{len(odd)} parameters are not those of the model", cause=f"for example {odd[0]!r}")
    files = _cut(shapes, FILE_DTYPES[dtype].itemsize, file_bytes_max)
    try:
        for file in files:
            _write_file(folder / file.name, file, params, shapes, dtype)
        total = sum(map(math.prod, shapes.values())) * FILE_DTYPES[dtype].itemsize
        if len(files) > 1:
            places = {one: file.name for file in files for name in file.tensors for one in hf_names(name, shapes[name])}
            _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))})
        _write_json(folder / CONFIG, described)
        fsync_folder(folder)
    except OSError as error:
        raise ModelError(f"cannot write a model to {folder}", cause=str(error), fix="free some space") from None
    return total


def _cut(shapes: Mapping[str, tuple[int, ...]], item_bytes: int, file_bytes_max: int) -> list[_File]:
    """Return the files in the order in which a forward pass reads their tensors."""
    groups: list[list[str]] = [[]]
    room = file_bytes_max
    for name in sorted(shapes, key=_forward_order):
        size = math.prod(shapes[name]) * item_bytes
        if groups[-1] and size > room:
            groups.append([])
            room = file_bytes_max
        groups[-1].append(name)
        room -= size
    if len(groups) == 1:
        return [_File(WEIGHTS, tuple(groups[0]))]
    count = len(groups)
    return [
        _File(f"model-{number:05}-of-{count:05}.safetensors", tuple(group)) for number, group in enumerate(groups, 1)
    ]


def _forward_order(name: str) -> tuple[int, int, str]:
    if name.startswith("layers."):
        return (1, int(name.split(".")[1]), name)
    return (0 if name == "embedding" else 2, 0, name)


def _write_file(
    path: Path, file: _File, params: Params, shapes: Mapping[str, tuple[int, ...]], dtype: FileDtype
) -> None:
    entries = [
        (hub_name, dtype, hf_shape(name, shapes[name]))
        for name in file.tensors
        for hub_name in hf_names(name, shapes[name])
    ]
    with path.open("wb") as out:
        out.write(format_header(entries))
        for name in file.tensors:
            value = np.asarray(jax.device_get(params[name]))
            if value.shape != shapes[name]:
                raise ModelError(f"parameter {name!r} has shape {value.shape}, expected {shapes[name]}")
            # The Hub's tensors of a layer's experts follow each other, as the experts do in ours.
            turned = value.swapaxes(-1, -2) if is_transposed(name) else value
            out.write(np.ascontiguousarray(turned, dtype=FILE_DTYPES[dtype]).view(np.uint8).data)
        out.flush()
        os.fsync(out.fileno())


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
