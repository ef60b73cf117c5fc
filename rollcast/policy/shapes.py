"""Derive the names and shapes of a model's parameters from its configuration alone, without importing jax."""

from __future__ import annotations

import math

from rollcast.policy.config import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every parameter by name, sorted; the same as rollcast.policy.params.abstract_params."""
    shapes: Shapes = {"embedding": (config.vocabulary_size, config.width), "final_norm.scale": (config.width,)}
    if not config.tied_embeddings:
        shapes["head.kernel"] = (config.width, config.vocabulary_size)
    block = _block_shapes(config)
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
    return dict(sorted(shapes.items()))


def is_hidden_kernel(name: str) -> bool:
    """Return whether a parameter is a matrix between two layers, neither of the vocabulary nor of a norm."""
    return name.startswith("layers.") and name.endswith(".kernel")


def parameter_count(config: ModelConfig) -> int:
    """Return the count of numbers in all parameters."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def _block_shapes(config: ModelConfig) -> Shapes:
    width, inner = config.width, config.feed_forward_width
    outputs = {
        "query": config.query_heads * config.head_size,
        "key": config.key_value_heads * config.head_size,
        "value": config.key_value_heads * config.head_size,
    }
    shapes: Shapes = {f"attention.{name}.kernel": (width, size) for name, size in outputs.items()}
    if config.attention_bias:
        shapes |= {f"attention.{name}.bias": (size,) for name, size in outputs.items()}
    if config.qk_norm:
        shapes |= {f"attention.{name}_norm.scale": (config.head_size,) for name in ("query", "key")}
    return shapes | {
        "attention.output.kernel": (outputs["query"], width),
        "attention_norm.scale": (width,),
        "feed_forward_norm.scale": (width,),
        "feed_forward.gate.kernel": (width, inner),
        "feed_forward.up.kernel": (width, inner),
        "feed_forward.down.kernel": (inner, width),
    }
