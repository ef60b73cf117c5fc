from __future__ import annotations

import pytest
from pydantic import ValidationError

from rollcast.policy.config import ModelConfig
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.shapes import parameter_count

#: Parameters as the model cards give them, in millions; tied embeddings counted once.
MILLIONS = {
    "qwen3-0.6b": 596,
    "qwen3-1.7b": 1721,
    "qwen3-4b": 4022,
    "qwen3-8b": 8191,
    "qwen3-14b": 14768,
    "qwen3-32b": 32762,
    "qwen2.5-0.5b": 494,
    "qwen2.5-1.5b": 1544,
    "qwen2.5-3b": 3086,
    "qwen2.5-7b": 7616,
    "qwen2.5-14b": 14770,
    "qwen2.5-32b": 32764,
    "llama-3-8b": 8030,
    "llama-3.1-8b": 8030,
    "llama-3.2-1b": 1236,
    "llama-3.2-3b": 3213,
    "llama-3.3-70b": 70554,
}


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items())
def test_a_preset_has_the_published_number_of_parameters(name: str, millions: int) -> None:
    assert parameter_count(ModelConfig(preset=name)) // 1_000_000 == pytest.approx(millions, abs=1)


def test_every_preset_is_an_architecture() -> None:
    assert all(ModelConfig(preset=name).preset == "" for name in ARCHITECTURES)


def test_values_given_beside_a_preset_win() -> None:
    config = ModelConfig.model_validate({"preset": "llama-3.1-8b", "precision": "float32", "layers": 2})
    assert (config.layers, config.precision, config.width) == (2, "float32", 4096)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.factor, config.rope_scaling.original_context) == (8.0, 8192)


def test_a_resolved_preset_reads_back_as_it_is() -> None:
    config = ModelConfig(preset="qwen3-4b")
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(ValidationError, match=r"no preset 'qwen9'; there are qwen3-0\.6b"):
        ModelConfig(preset="qwen9")
