"""Map our tensor names to those of the Hugging Face Hub, for Qwen3, Qwen3-MoE, Qwen2.5 and Llama 3.

The Hub has a tensor for each expert's kernel, where we have one for all experts of a layer.
"""

from __future__ import annotations

import re

_OUTER = {
    "embedding": "model.embed_tokens.weight",
    "final_norm.scale": "model.norm.weight",
    "head.kernel": "lm_head.weight",
}
_MODULES = {
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "feed_forward.router": "mlp.gate",
}
_EXPERTS = {
    "feed_forward.expert_gate": "gate_proj",
    "feed_forward.expert_up": "up_proj",
    "feed_forward.expert_down": "down_proj",
}
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(kernel|scale|bias)")

# Buffers of older checkpoints that follow from the configuration.
_IGNORED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def hf_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the Hub's names of a parameter of this shape: one, or for kernels of experts one for each expert.

    Raises:
        KeyError: it is no parameter of ours.
    """
    if name in _OUTER:
        return [_OUTER[name]]
    match = _LAYER.fullmatch(name)
    if match is None:
        raise KeyError(name)
    layer, module, leaf = match.groups()
    if module in _EXPERTS:
        return [f"model.layers.{layer}.mlp.experts.{one}.{_EXPERTS[module]}.weight" for one in range(shape[0])]
    return [f"model.layers.{layer}.{_MODULES[module]}.{_LEAVES[leaf]}"]


def hf_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of each of the Hub's tensors of a parameter.

    The Hub stores every kernel as [outputs, inputs], but not the embedding.
    """
    return shape[-2:][::-1] if is_transposed(name) else shape


def is_transposed(name: str) -> bool:
    """Return whether the Hub stores a parameter's matrices transposed."""
    return name.endswith(".kernel")


def may_be_ignored(hub_name: str, *, tied: bool) -> bool:
    """Return whether a tensor that is no parameter of ours may be in a file, and is then ignored."""
    return (tied and hub_name == "lm_head.weight") or _IGNORED.fullmatch(hub_name) is not None
