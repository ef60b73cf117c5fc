"""Load a version's tensors into vLLM's workers in place: the methods that AsyncLLM.collective_rpc calls on each.

vLLM's layerwise reload takes the tensors of a checkpoint one by one, divides and packs them as when it started, and
copies the result into the memory that the model computes from (vllm/model_executor/model_loader/reload).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from peer.engines.vllm.server.lifetime import end_with_peer

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class VersionWeights:
    """What vLLM mixes into its worker class (worker_extension_cls)."""

    vllm_config: VllmConfig
    model_runner: Any

    def watch_peer(self, lock: str) -> None:
        """End this worker with the peer (see lifetime)."""
        end_with_peer(Path(lock))

    def load_version(self, state: str, table: str) -> None:
        """Read a version from the file of its state, with the table that peer.engines.vllm.checkpoint wrote."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.model
        tensors = json.loads(Path(table).read_text())
        with torch.device(self.model_runner.device), set_current_vllm_config(self.vllm_config), torch.no_grad():
            initialize_layerwise_reload(model)
            model.load_weights(checkpoint_tensors(Path(state), tensors))
            finalize_layerwise_reload(model, self.model_runner.model_config)
            _repack_tied_head(model)


def _repack_tied_head(model: torch.nn.Module) -> None:
    """Pack a tied head's weights again, which the processor backend keeps in a copy of its own.

    No checkpoint has a tied head's tensor, so the layerwise reload leaves the head as it is.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    modules = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    heads = [module for module in modules if isinstance(module, ParallelLMHead)]
    embeddings = {module.weight.data_ptr() for module in modules if module not in heads}
    for head in heads:
        if head.weight.data_ptr() in embeddings:
            head.quant_method.process_weights_after_loading(head)


def checkpoint_tensors(state: Path, tensors: list[dict[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a state by their names on the Hub, as views of the mapped file: nothing is copied."""
    size_bytes = state.stat().st_size
    mapped = torch.from_file(str(state), shared=False, size=size_bytes, dtype=torch.uint8)
    for one in tensors:
        flat = mapped[one["offset_bytes"] : one["offset_bytes"] + one["size_bytes"]]
        tensor = flat.view(_DTYPES[one["dtype"]]).view(one["shape"])
        parts = list(tensor) if tensor.dim() == 3 else [tensor]  # the Hub has a tensor for each expert
        for name, part in zip(one["names"], parts, strict=True):
            yield name, part.mT if one["transposed"] else part
