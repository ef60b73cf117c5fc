"""Find out where vLLM has each tensor of a checkpoint in its parameters, and read and write it there.

vLLM's loaders know: they map names, cut tensors for tensor parallelism and pack several into one parameter. They are
run once with tensors that have a shape but no memory, and every copy into a parameter that they would make is noted
instead of made. The result holds for parameters that stay as they were loaded. Where vLLM changes them after loading
(packed for a kernel, quantised), what is read back is not the state that was loaded: then `fill` must not be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TRANSPOSED_COLUMNS = 512
"""Columns that a processor transposes at a time. All at once take twice as long: what is read leaves its cache."""
STAGED_BYTES = 64 << 20
"""Bytes that are on their way to a device at a time, where a tensor can be cut."""


class NotPlaced(Exception):
    """vLLM's loaders do more with a tensor than to copy rectangles of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of a tensor of the checkpoint, and the memory of a parameter that holds it.

    Args:
        starts, sizes: the rectangle in the tensor as it is on the Hub, of one or two dimensions.
        target: the view of the parameter, of shape ``sizes``.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    target: torch.Tensor

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the rectangle of the tensor as a view."""
        for dimension, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            tensor = tensor.narrow(dimension, start, size)
        return tensor


class Placement:
    """Where the tensors of a checkpoint are in the parameters of one worker."""

    def __init__(self, parts: Mapping[str, list[Part]]) -> None:
        self._parts = parts
        self._targets: dict[int, int] = {}
        self.flat: list[torch.Tensor] = []
        """The memory of each parameter, as one dimension; parts name it by its number."""
        for part in (part for placed in parts.values() for part in placed):
            pointer = part.target.untyped_storage().data_ptr()
            if pointer not in self._targets:
                self._targets[pointer] = len(self.flat)
                items = part.target.untyped_storage().nbytes() // part.target.element_size()
                self.flat.append(part.target.as_strided((items,), (1,), 0))

    def described(self) -> dict[str, list[Any]]:
        """Return for each tensor its parts as peer.engines.vllm.patches.read_placement reads them."""
        return {name: [self._describe(part) for part in parts] for name, parts in self._parts.items()}

    def fill(self, name: str, tensor: torch.Tensor) -> int:
        """Copy a tensor of the checkpoint into the parameters; return the bytes that were moved to the device."""
        moved = 0
        for part in self._parts[name]:
            source = part.of(tensor)
            _copy(part.target, source)
            moved += source.numel() * source.element_size()
        return moved

    def read(self, name: str, into: torch.Tensor) -> None:
        """Copy what this worker has of a tensor out of the parameters, into its place in ``into``."""
        for part in self._parts[name]:
            _copy(part.of(into), part.target)

    def _describe(self, part: Part) -> list[Any]:
        target = part.target
        flat = len(part.sizes) == 1
        number = self._targets[target.untyped_storage().data_ptr()]
        starts, sizes = [
            [*values, *([filler] if flat else [])] for values, filler in ((part.starts, 0), (part.sizes, 1))
        ]
        return [starts, sizes, number, target.storage_offset(), [*target.stride(), *([1] if flat else [])]]


def find_placement(model: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> Placement:
    """Return where a model's loaders put tensors.

    Args:
        model: a model of vLLM.
        tensors: names on the Hub with tensors on the meta device, contiguous, of their shapes and dtypes there.

    Raises:
        NotPlaced: a loader does more than to copy rectangles.
    """
    noted = _NotedCopies(dict(tensors))
    with noted, torch.no_grad():
        model.load_weights(iter(noted.tensors.items()))
    missing = [name for name, parts in noted.parts.items() if not parts]
    if missing:
        raise NotPlaced(f"vLLM has no place for {missing[0]}")
    return Placement(noted.parts)


class _NotedCopies(TorchDispatchMode):  # type: ignore[misc]
    """Notes copies out of given tensors instead of making them."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.tensors = tensors
        self.parts: dict[str, list[Part]] = {name: [] for name in tensors}
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[1].is_meta:
            target, source = args[0], args[1]
            name = self._names.get(source.untyped_storage()._cdata)
            if name is None or target.shape != source.shape or target.is_meta:
                raise NotPlaced("a loader converts a tensor before it copies it")
            self.parts[name].append(_part(name, self.tensors[name], source, target))
            return target
        return func(*args, **(kwargs or {}))


def _part(name: str, tensor: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> Part:
    """Return the part that a copy from ``source``, a view of ``tensor``, makes."""
    if source.stride() != tensor.stride() or source.dim() not in (1, 2):
        raise NotPlaced(f"a loader turns {name}")
    offset, starts = source.storage_offset(), []
    for stride in tensor.stride():
        starts.append(offset // stride)
        offset %= stride
    return Part(tuple(starts), tuple(source.shape), target.detach())


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between devices, or on one, with memory on the device for one tensor at most."""
    if target.device != source.device:
        _copy_across(target, source)
        return
    # A processor turns a matrix as fast as its cache allows: by a few columns at a time.
    columns = TRANSPOSED_COLUMNS if target.is_cpu and _is_turned(source) != _is_turned(target) else source.shape[-1]
    for start in range(0, source.shape[-1], max(1, columns)):
        target[..., start : start + columns].copy_(source[..., start : start + columns])


def _copy_across(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between the host and a device, which turns matrices: its memory is faster than the host's."""
    if _is_turned(source):
        target.copy_(source.mT.to(target.device).mT)
    elif _is_turned(target):
        target.mT.copy_(source.mT.contiguous())
    else:
        rows = max(1, STAGED_BYTES * source.shape[0] // (source.numel() * source.element_size()))
        for start in range(0, source.shape[0], rows):
            target[start : start + rows].copy_(source[start : start + rows])


def _is_turned(tensor: torch.Tensor) -> bool:
    return bool(tensor.dim() == 2 and tensor.stride(0) < tensor.stride(1))
