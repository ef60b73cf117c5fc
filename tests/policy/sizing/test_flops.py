from __future__ import annotations

from rollcast.policy.config import ModelConfig
from rollcast.policy.shapes import parameter_count
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


def test_attention_counts_pairs_within_a_sequence() -> None:
    model = ModelConfig(vocabulary_size=16)
    apart, together = training_flops(model, [8, 8]), training_flops(model, [16])
    assert together - apart == 12 * 2 * 8 * 16 * (16 * 16 - 2 * 8 * 8) / 2
