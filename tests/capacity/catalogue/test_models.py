from __future__ import annotations

import pytest

from capacity.catalogue.models import model_named, models
from rollcast.policy.config import ModelConfig
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.shapes import parameter_count


def test_a_model_is_known_by_its_name_and_its_repository() -> None:
    assert model_named("qwen3-8b") is model_named("Qwen/Qwen3-8B") is models()["qwen3-8b"]
    assert model_named("unheard-of-9b") is None


def test_sizes_are_those_of_their_names() -> None:
    assert models()["qwen3-8b"].weight_bytes == pytest.approx(16.4e9, rel=0.01)
    assert models()["qwen3-8b"].kv_bytes_per_token == 147_456
    assert models()["qwen3-30b-a3b"].computed_parameters == pytest.approx(3e9, rel=0.05)
    for model in models().values():
        assert 0 < model.computed_parameters <= model.parameters


@pytest.mark.parametrize("preset", ARCHITECTURES)
def test_every_model_that_can_be_trained_is_known_with_the_same_sizes(preset: str) -> None:
    config, model = ModelConfig(preset=preset), models()[preset]
    assert model.parameters == parameter_count(config)
    assert (model.layers, model.kv_heads, model.head_dim) == (config.layers, config.key_value_heads, config.head_size)
