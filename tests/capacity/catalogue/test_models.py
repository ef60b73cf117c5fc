from __future__ import annotations

import pytest

from capacity.catalogue.models import model_named, models


def test_a_model_is_known_by_its_name_and_its_repository() -> None:
    assert model_named("qwen3-8b") is model_named("Qwen/Qwen3-8B") is models()["qwen3-8b"]
    assert model_named("unheard-of-9b") is None


def test_sizes_are_those_of_their_names() -> None:
    assert models()["qwen3-8b"].weight_bytes == pytest.approx(16.4e9, rel=0.01)
    assert models()["qwen3-8b"].kv_bytes_per_token == 147_456
    assert models()["qwen3-30b-a3b"].computed_parameters == pytest.approx(3e9, rel=0.05)
    for model in models().values():
        assert 0 < model.computed_parameters <= model.parameters
