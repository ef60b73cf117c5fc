from __future__ import annotations

import argparse

import pytest

from bench.learner import parity
from bench.machine import Outcome


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parity.add_arguments(parser)
    return parser.parse_args(given)


@pytest.mark.slow
@pytest.mark.parametrize("case", [parity.Case("llama", tied=False), parity.Case("qwen3", tied=True, yarn=True)])
def test_a_small_model_agrees_whole_and_through_the_cache(case: parity.Case) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tiny = arguments("--width", "64", "--layers", "1", "--tokens", "48", "--prompt", "44")
    figures = parity.compare(case, tiny)
    assert 0 < figures["whole_f32"] <= 1e-4
    assert 0 < figures["cache_f32"] <= 1e-4
    assert figures["logit_deviation"] > 0.5
    assert 0.3 < figures["bf16_gap_ratio"] < 1.3


def test_the_headline_is_the_worst_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(case: parity.Case, _arguments: argparse.Namespace) -> dict[str, float]:
        return {
            "whole_f32": 2.0 if case.tied else 1.0,
            "cache_f32": 3.0 if case.family == "qwen2" else 0.5,
            "bf16_gap_ratio": 0.9,
            "bf16_max_ratio": 0.8,
        }

    monkeypatch.setattr(parity, "compare", stand_in)
    monkeypatch.setattr(parity, "_versions", dict)
    outcome = parity.run(arguments())
    assert isinstance(outcome, Outcome)
    assert outcome.figures["max_abs_dlogit_f32"] == 3.0
    assert outcome.figures["max_abs_dlogit_f32_whole"] == 2.0
    assert outcome.figures["llama_untied_whole_f32"] == 1.0
