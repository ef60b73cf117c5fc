"""Load weights from the Hugging Face Hub's safetensors, one tensor at a time.

Files are mapped, not read: a tensor is widened to float32 and transposed on its way to the device, and its pages are
released before the next one; the kernels of a layer's experts are one tensor. The host never holds more than one tensor
beyond those that ``place`` keeps.
"""

from __future__ import annotations

import mmap
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.names import hf_names, hf_shape, is_transposed, may_be_ignored
from rollcast.policy.params import Params, Place
from rollcast.policy.shapes import parameter_shapes
from rollcast.runtime.errors import ModelError
from rollcast.wire.text.model_folder import ModelFolder, PlacedTensor

_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def load_params(config: ModelConfig, folder: Path, place: Place | None = None) -> Params:
    """Load float32 parameters by our names, from model.safetensors or the files of its index.

    Args:
        config: the configuration of this model; see rollcast.policy.hub.config.
        folder: the folder with the files.
        place: places each tensor; None: on the default device.

    Raises:
        ModelError: a tensor is missing, unknown, of another shape, of a dtype that is no float, or not finite.
    """
    wanted = _wanted(config, ModelFolder(folder).tensors(), folder)
    keep = place or (lambda _name, value: jnp.asarray(value))
    params: Params = {}
    files: dict[Path, _Mapped] = {}
    with ExitStack() as stack:
        # In the order of the names, in which all processes of a distributed learner place their tensors.
        for name, shape in sorted(parameter_shapes(config).items()):
            value = np.empty(shape, np.float32)
            hub_names = hf_names(name, shape)
            for part, hub_name in zip(value if len(hub_names) > 1 else [value], hub_names, strict=True):
                placed = wanted[hub_name]
                if placed.path not in files:
                    files[placed.path] = _Mapped(placed.path)
                    stack.callback(files[placed.path].close)
                files[placed.path].read_into(part, hub_name, placed, transposed=is_transposed(name))
            params[name] = keep(name, value)
            del value
    return params


class _Mapped:
    """A file of weights that is mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read_into(
        self,
        value: np.ndarray[Any, np.dtype[np.float32]],
        hub_name: str,
        placed: PlacedTensor,
        *,
        transposed: bool,
    ) -> None:
        """Copy a tensor into an array, widened and perhaps transposed.

        Raises:
            ModelError: the tensor holds numbers that are not finite.
        """
        stored = placed.tensor
        dtype = _DTYPES[stored.dtype]
        count = stored.size_bytes // dtype.itemsize
        view = np.frombuffer(self._map, dtype, count, stored.start_bytes).reshape(stored.shape)
        value[...] = view.T if transposed else view
        del view
        self._give_back(stored.start_bytes, stored.size_bytes)
        if not np.isfinite(value).all():
            raise ModelError(
                f"tensor {hub_name!r} of {self.path} holds numbers that are not finite",
                cause="the file is damaged, or training that made it had diverged",
                fix="download the model again, or take an earlier checkpoint",
            )

    def close(self) -> None:
        self._map.close()

    def _give_back(self, start_bytes: int, size_bytes: int) -> None:
        """Release the mapped pages, which otherwise count as this process's memory after they were read."""
        start = start_bytes - start_bytes % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, start_bytes + size_bytes - start)


def _wanted(config: ModelConfig, found: dict[str, PlacedTensor], folder: Path) -> dict[str, PlacedTensor]:
    """Return the places of all tensors by the Hub's names, checked to be complete and without others."""
    shapes = parameter_shapes(config)
    names = {hub_name: name for name, shape in shapes.items() for hub_name in hf_names(name, shape)}
    missing = sorted(names.keys() - found.keys())
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} of {len(names)} tensors",
            cause=f"for example {missing[0]!r}",
            fix="take weights and config.json from the same model, complete, in float32, float16 or bfloat16",
        )
    extra = [one for one in found if one not in names and not may_be_ignored(one, tied=config.tied_embeddings)]
    if extra:
        raise ModelError(
            f"{folder} has {len(extra)} tensors that this architecture does not",
            cause=f"for example {extra[0][:200]!r}",
            fix="take weights and config.json from the same model; adapters must be merged first",
        )
    for hub_name, name in names.items():
        _check_form(hub_name, found[hub_name], hf_shape(name, shapes[name]))
    return {hub_name: found[hub_name] for hub_name in names}


def _check_form(hub_name: str, placed: PlacedTensor, shape: tuple[int, ...]) -> None:
    if placed.tensor.shape != shape:
        raise ModelError(
            f"tensor {hub_name!r} of {placed.path} has shape {list(placed.tensor.shape)}",
            cause=f"by config.json it has {list(shape)}",
            fix="take weights and config.json from the same model",
        )
    if placed.tensor.dtype not in _DTYPES:
        raise ModelError(
            f"tensor {hub_name!r} of {placed.path} is {placed.tensor.dtype}",
            cause="quantised weights cannot be trained on",
            fix="take the model in bfloat16",
        )
