"""Run the policy as the transformers model of its family, directly on a snapshot's bytes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from rollcast.policy.config import ModelConfig, described_model
from rollcast.policy.hub.config import family_of, write_config
from rollcast.policy.hub.names import hf_names, is_transposed
from rollcast.policy.shapes import parameter_shapes
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.tensors import tensor_table

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

#: Tensors by the Hub's names, all of them views of one buffer.
Weights = dict[str, torch.Tensor]


def read_model(record: VersionRecord) -> ModelConfig:
    """Return a version's architecture.

    Raises:
        MalformedMessage: this release or this engine cannot run it, or the record's tensors do not belong to it.
    """
    config = described_model(record)
    if config.precision not in _DTYPES:
        raise MalformedMessage(
            f"the torch engine cannot run a model in {config.precision}",
            cause="transformers does not round activations as the learner does",
            fix='set engine.kind = "jax", or train in bfloat16',
        )
    if config.experts:
        raise MalformedMessage(
            "the torch engine cannot run a model with experts",
            cause="transformers holds a layer's experts in one tensor of another layout than a version's",
            fix='set engine.kind = "jax"',
        )
    table = tensor_table((name, config.precision, shape) for name, shape in parameter_shapes(config).items())
    if tuple(record.tensors) != table:
        raise MalformedMessage(
            "the version's tensors do not match its model",
            cause="names, dtypes, shapes or offsets differ from what the model configuration gives",
            fix="run the same release on the learner and on the peers",
        )
    return config


def weights_of(record: VersionRecord, buffer: torch.Tensor) -> Weights:
    """Return the tensors of a state uint8 [bytes] as views; kernels are transposed views, as the Hub stores them.

    Raises:
        MalformedMessage: the state has another size than the record says.
    """
    size_bytes = sum(spec.size_bytes for spec in record.tensors)
    if len(buffer) != size_bytes:
        raise MalformedMessage(f"the version's state has {len(buffer)} bytes, but its record says {size_bytes}")
    weights: Weights = {}
    for spec in record.tensors:
        flat = buffer[spec.offset_bytes : spec.offset_bytes + spec.size_bytes].view(_DTYPES[spec.dtype])
        tensor = flat.view(spec.shape)
        (name,) = hf_names(spec.name, spec.shape)
        weights[name] = tensor.T if is_transposed(spec.name) else tensor
    return weights


class TorchModel:
    """One transformers model whose weights can be exchanged without a copy."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        values = write_config(config, config.precision)
        hub = AutoConfig.for_model(family_of(config), **{k: v for k, v in values.items() if k != "model_type"})
        # On the meta device, without memory: parameters are replaced by the snapshot's, and the rotary tables, which
        # no snapshot holds, are created anew on the real device.
        with torch.device("meta"):
            self.hub_model: Any = AutoModelForCausalLM.from_config(hub, dtype=_DTYPES[config.precision])
        with device:
            self.hub_model.model.rotary_emb = type(self.hub_model.model.rotary_emb)(config=hub)
        self.hub_model.eval()
        self._pointed: Weights | None = None

    def point(self, weights: Weights) -> None:
        """Compute with these weights from now on. Only the pointer to each tensor changes."""
        if weights is self._pointed:
            return
        for name, tensor in weights.items():
            module, _, leaf = name.rpartition(".")
            setattr(self.hub_model.get_submodule(module), leaf, torch.nn.Parameter(tensor, requires_grad=False))
        if self.config.tied_embeddings:
            self.hub_model.lm_head.weight = self.hub_model.model.embed_tokens.weight
        self._pointed = weights

    def read(
        self, tokens: torch.Tensor, positions: torch.Tensor, allowed: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Return the hidden states [rows, time, width] after the last norm, and append keys and values to ``cache``.

        Args:
            tokens, positions: i64 [rows, time].
            allowed: bool [rows, time, slots], attention mask over the cache's slots, then the new tokens.
        """
        with torch.inference_mode():
            hidden: torch.Tensor = self.hub_model.model(
                input_ids=tokens,
                attention_mask=allowed[:, None],
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits f32 [rows, vocabulary] from hidden states [rows, width]."""
        with torch.inference_mode():
            logits: torch.Tensor = self.hub_model.lm_head(hidden).float()
        return logits
