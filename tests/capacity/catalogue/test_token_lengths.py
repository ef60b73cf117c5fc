from __future__ import annotations

import pytest

from capacity.catalogue.token_lengths import LENGTH_NAMES, lengths_named


def test_the_reasoning_models_quantiles_are_those_published() -> None:
    found = lengths_named("deepseek-r1")
    assert found is not None
    assert found.quantile(0.5) == pytest.approx(954, abs=1)
    assert found.quantile(0.99) == pytest.approx(14_901, rel=0.001)


def test_answers_of_a_chat_and_of_code_are_short() -> None:
    means = {}
    for name in LENGTH_NAMES:
        found = lengths_named(name)
        assert found is not None
        means[name] = found.mean
    assert means["azure-code"] < means["azure-chat"] < means["deepseek-r1"]


def test_prompts_have_their_own() -> None:
    prompts = lengths_named("azure-code", "input_tokens")
    assert prompts is not None
    assert prompts.mean == pytest.approx(2048, rel=0.01)
    assert lengths_named("unheard-of") is None
