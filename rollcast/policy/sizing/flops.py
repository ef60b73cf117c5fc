"""Count the floating-point operations that a model needs, without those that a computation adds by recomputing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rollcast.policy.config import ModelConfig
from rollcast.policy.lora import adapter_shapes
from rollcast.policy.shapes import parameter_shapes


def training_flops(model: ModelConfig, lengths: Iterable[int]) -> float:
    """Return the FLOPs of a forward and a backward pass over sequences of these lengths, in tokens.

    Each token takes 6 for each weight of a matrix (Kaplan et al. 2020, "Scaling laws for neural language models",
    section 2.1), and each pair of tokens of a sequence 12 for each inner element of attention, of which the causal half
    counts (Chowdhery et al. 2022, "PaLM", appendix B). Looking up an embedding has none; a tied one counts as the head.
    Of a layer's experts those count that a token is sent to. Under adapters the weights of the frozen base take 4,
    since they get no gradient.
    """
    weights = model.vocabulary_size * model.width if model.tied_embeddings else 0
    for name, shape in parameter_shapes(model).items():
        if name.endswith(".kernel"):
            weights += math.prod(shape[-2:]) * (model.experts_per_token if len(shape) > 2 else 1)
    tokens, pairs = 0, 0.0
    for length in lengths:
        tokens, pairs = tokens + length, pairs + length * length / 2
    of_weights = 6.0 * weights
    if model.lora is not None:
        of_weights = 4.0 * weights + 6.0 * sum(map(math.prod, adapter_shapes(model).values()))
    return of_weights * tokens + 12.0 * model.layers * model.query_heads * model.head_size * pairs
