"""Put a version's tensors into vLLM's workers in place: the methods that AsyncLLM.collective_rpc calls on each.

The first version of a model goes through vLLM's layerwise reload (vllm/model_executor/model_loader/reload), which
divides and packs the tensors of a checkpoint as when vLLM started. If the parameters then still hold what was loaded,
`find_places` finds out where, and later versions are written there: whole tensors (`load_version`) or only what changed
(`stage_patch` before generation is paused, `apply_patch` while it is).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from peer.engines.vllm.server.lifetime import end_with_peer
from peer.engines.vllm.server.placement import NotPlaced, Placement, find_placement

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_INDEX_BYTES = 4  # of an element in a patch
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STAGED_SHARE_MAX = 0.045
"""Largest share of the weights' memory that a patch may take on the device before it is applied.

A larger one waits in the host's memory and is moved while generation is paused. On a processor it waits in its file,
and what takes memory are its indices in the 64 bits in which they are used.
"""


class VersionWeights:
    """What vLLM mixes into its worker class (worker_extension_cls)."""

    vllm_config: VllmConfig
    model_runner: Any
    rank: int
    _placement: Placement | None = None
    _patch: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
    """Of each piece of a patch: the parameter's memory, indices into it, and new values."""

    def watch_peer(self, lock: str) -> None:
        """End this worker with the peer (see lifetime)."""
        end_with_peer(Path(lock))

    def load_version(self, state: str, table: str) -> int:
        """Read a version from the file of its state, with the table that peer.engines.vllm.checkpoint wrote.

        Returns:
            The bytes that were moved to the device.
        """
        self._patch = None
        mapped, tensors = map_file(Path(state)), json.loads(Path(table).read_text())
        if self._placement is not None:
            return sum(self._placement.fill(name, one) for name, one in checkpoint_tensors(mapped, tensors))
        self._reload(checkpoint_tensors(mapped, tensors))
        return len(mapped)

    def find_places(self, table: str, placement: str) -> str:
        """Write where each tensor of a checkpoint is in this worker's parameters to the file PLACEMENT.RANK.

        Returns:
            Why the parameters cannot be written in place; empty if they can, unless reading them back shows that they
            do not hold what was loaded (`forget_places`).
        """
        described = json.loads(Path(table).read_text())
        try:
            self._placement = find_placement(self.model_runner.model, _without_memory(described))
        except NotPlaced as error:
            return str(error)
        Path(f"{placement}.{self.rank}").write_text(json.dumps(self._placement.described()))
        return ""

    def forget_places(self) -> None:
        """Load versions through vLLM's own reload from now on."""
        self._placement = self._patch = None

    def stage_patch(self, patch: str) -> None:
        """Get ready what changes: the file PATCH.RANK that peer.engines.vllm.patches wrote."""
        assert self._placement is not None
        path = Path(f"{patch}.{self.rank}")
        entries, mapped = json.loads(path.with_name(f"{path.name}.json").read_text()), map_file(path)
        weights_bytes = sum(flat.nbytes for flat in self._placement.flat)
        on_processor = all(flat.is_cpu for flat in self._placement.flat)
        staged_bytes = 8 * sum(entry["count"] for entry in entries) if on_processor else len(mapped)
        on_device = staged_bytes <= STAGED_SHARE_MAX * weights_bytes
        self._patch = []
        for entry in entries:
            flat = self._placement.flat[entry["target"]]
            indices = _array(mapped, entry["indices_at"], entry["count"], torch.int32)
            values = _array(mapped, entry["values_at"], entry["count"], _DTYPES[entry["dtype"]])
            if not flat.is_cpu:
                indices, values = indices.pin_memory(), values.pin_memory()
            if on_device:
                indices, values = indices.to(flat.device, torch.int64 if flat.is_cpu else None), values.to(flat.device)
            self._patch.append((flat, indices, values))

    def apply_patch(self) -> int:
        """Write what changes; return the bytes of indices and values. If it fails, the weights are of no version."""
        assert self._patch is not None
        moved = 0
        for flat, indices, values in self._patch:
            # On a processor index_copy_ takes twice as long.
            flat.index_put_((indices.to(flat.device, torch.int64),), values.to(flat.device, flat.dtype))
            moved += len(indices) * (_INDEX_BYTES + values.element_size())
        if not all(flat.is_cpu for flat, _, _ in self._patch):
            torch.accelerator.synchronize()
        self._patch = None
        return moved

    def read_back(self, table: str, first: int, count: int, scratch: str) -> None:
        """Write what this worker has of some tensors of the table into a file, where they follow each other."""
        assert self._placement is not None
        mapped, described = map_file(Path(scratch), shared=True), json.loads(Path(table).read_text())
        chosen = described[first : first + count]
        for name, tensor in checkpoint_tensors(mapped, chosen, chosen[0]["offset_bytes"]):
            self._placement.read(name, tensor)

    def _reload(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.model
        with torch.device(self.model_runner.device), set_current_vllm_config(self.vllm_config), torch.no_grad():
            initialize_layerwise_reload(model)
            model.load_weights(tensors)
            finalize_layerwise_reload(model, self.model_runner.model_config)


def map_file(path: Path, *, shared: bool = False) -> torch.Tensor:
    """Return the bytes of a file as a tensor that is mapped: nothing is read before it is used."""
    return torch.from_file(str(path), shared=shared, size=path.stat().st_size, dtype=torch.uint8)


def checkpoint_tensors(
    state: torch.Tensor, tensors: list[dict[str, Any]], begin_bytes: int = 0
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors by their names on the Hub, as views of a state that begins at ``begin_bytes`` of the version's."""
    for one in tensors:
        start = one["offset_bytes"] - begin_bytes
        tensor = state[start : start + one["size_bytes"]].view(_DTYPES[one["dtype"]]).view(one["shape"])
        parts = list(tensor) if tensor.dim() == 3 else [tensor]  # the Hub has a tensor for each expert
        for name, part in zip(one["names"], parts, strict=True):
            yield name, part.mT if one["transposed"] else part


def _without_memory(tensors: list[dict[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint as the Hub has them, with a shape but no memory."""
    for one in tensors:
        shape = one["shape"][-2:]
        for name in one["names"]:
            yield (
                name,
                torch.empty(shape[::-1] if one["transposed"] else shape, dtype=_DTYPES[one["dtype"]], device="meta"),
            )


def _array(mapped: torch.Tensor, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return mapped[start : start + count * dtype.itemsize].view(dtype)


def keep_weights_unpacked() -> None:
    """Have vLLM's processor backend compute with its weights as they were loaded, instead of with packed copies.

    Packed weights cannot be read back or written in place, and of an embedding there are two copies.
    """
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        utils.dispatch_cpu_unquantized_gemm = _unpacked


def _unpacked(layer: Any, remove_weight: bool) -> None:
    """Take the place of vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm."""
    layer.cpu_linear = torch.nn.functional.linear


keep_weights_unpacked()  # vLLM imports this module in every worker before it loads the model
