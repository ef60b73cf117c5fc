from __future__ import annotations

import math

from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.shapes import active_parameter_count, parameter_count, parameter_shapes
from rollcast.policy.sizing.flops import training_flops


def test_flops_are_counted_by_hand() -> None:
    model = ModelConfig(
        vocabulary_size=10,
        layers=1,
        width=8,
        query_heads=2,
        key_value_heads=1,
        head_size=4,
        feed_forward_width=16,
    )
    block = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16
    assert parameter_count(model) == block + 10 * 8 + 3 * 8 + 2 * 4
    assert training_flops(model, [4, 4]) == 6 * (block + 10 * 8) * 8 + 12 * 8 * (2 * 4 * 4 / 2)


def test_the_base_under_adapters_gets_no_gradient() -> None:
    model = ModelConfig(vocabulary_size=10, layers=1)
    frozen = adapted(model, LoraConfig(rank=2, targets=("attention.query",)))
    attention = training_flops(model, [4]) - 6 * 4 * (weights := sum_of_kernels(model))
    assert training_flops(frozen, [4]) == 4 * 4 * weights + 6 * 4 * 2 * (128 + 128) + attention


def sum_of_kernels(model: ModelConfig) -> int:
    own = [shape for name, shape in parameter_shapes(model).items() if name.endswith(".kernel")]
    return sum(map(math.prod, own)) + model.vocabulary_size * model.width


def test_the_experts_of_a_token_count_alone() -> None:
    dense = ModelConfig(vocabulary_size=16, feed_forward_width=64)
    mixed = dense.model_copy(update={"experts": 8, "experts_per_token": 2, "expert_width": 32})
    router = 2 * 128 * 8
    assert training_flops(mixed, [4]) == training_flops(dense, [4]) + 6 * router * 4
    published = ModelConfig(preset="qwen3-30b-a3b")
    assert parameter_count(published) == 30_532_122_624  # of which 3.3 billion are active, 0.3 of them an embedding's
    assert active_parameter_count(published) == 3_041_867_776


def test_attention_counts_pairs_within_a_sequence() -> None:
    model = ModelConfig(vocabulary_size=16)
    apart, together = training_flops(model, [8, 8]), training_flops(model, [16])
    assert together - apart == 12 * 2 * 8 * 16 * (16 * 16 - 2 * 8 * 8) / 2
