"""Derive the names and shapes of a model's parameters from its configuration alone, without importing jax."""

from __future__ import annotations

import functools
import math

from rollcast.policy.config import ModelConfig

Shapes = dict[str, tuple[int, ...]]

ROUTER = "feed_forward.router.kernel"
"""The end of the name of a router's matrix, which is read in the carrier's dtype in every precision."""


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
    """Return whether a parameter is made of matrices between two layers: not of the vocabulary, a norm or a router."""
    return name.startswith("layers.") and name.endswith(".kernel") and not name.endswith(ROUTER)


def is_packable_kernel(name: str) -> bool:
    """Return whether a parameter is the kernel of a linear layer that can be frozen as codes of 4 bits: no expert's."""
    return is_hidden_kernel(name) and ".expert_" not in name


@functools.lru_cache(maxsize=64)
def parameter_count(config: ModelConfig) -> int:
    """Return the count of numbers in all parameters."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def active_parameter_count(config: ModelConfig) -> int:
    """Return the count of numbers that one token is computed with.

    They are all but those of experts that it is not sent to, and of an embedding that is only looked up in.
    """
    unused = config.layers * (config.experts - config.experts_per_token) * 3 * config.width * config.expert_width
    looked_up = 0 if config.tied_embeddings else config.vocabulary_size * config.width
    return parameter_count(config) - unused - looked_up


def head_copies(query_heads: int, key_value_heads: int, shards: int) -> int:
    """Return how often each key head must be repeated so that every shard has whole groups; 0 if no number does.

    Repeated heads keep the groups: query head q reads key head q // (query_heads / key_value_heads), whatever the
    number of copies, as long as it divides the group.
    """
    copies = shards // math.gcd(key_value_heads, shards)
    group = query_heads // key_value_heads
    return next((count for count in range(copies, group + 1, copies) if group % count == 0), 0)


def _block_shapes(config: ModelConfig) -> Shapes:
    width = config.width
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
        **_feed_forward_shapes(config),
    }


def _feed_forward_shapes(config: ModelConfig) -> Shapes:
    width = config.width
    if config.experts:
        experts, inner = config.experts, config.expert_width
        return {
            ROUTER: (width, experts),
            "feed_forward.expert_gate.kernel": (experts, width, inner),
            "feed_forward.expert_up.kernel": (experts, width, inner),
            "feed_forward.expert_down.kernel": (experts, inner, width),
        }
    inner = config.feed_forward_width
    return {
        "feed_forward.gate.kernel": (width, inner),
        "feed_forward.up.kernel": (width, inner),
        "feed_forward.down.kernel": (inner, width),
    }
