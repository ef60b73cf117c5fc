from __future__ import annotations

import argparse

import pytest

from bench.learner import learner
from bench.learner.learner_step import Step, random_batch
from rollcast.policy.shapes import parameter_count

TINY = argparse.Namespace(
    width=64,
    layers=1,
    vocabulary=32,
    row_tokens=24,
    rows=4,
    micro_batch_tokens=48,
    steps=1,
    precision="",
    remat="blocks",
)


def test_the_batch_fills_its_rows() -> None:
    batch = random_batch(4, 24, 32)
    assert batch.tokens.shape == (4, 24)
    assert batch.segments.min() == 1
    assert batch.tokens.max() < 32


@pytest.mark.slow
def test_speed_is_reported_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "MATMUL_SIZE", 64)
    figures = learner.speed(TINY)
    assert figures["roofline_share"] == pytest.approx(figures["achieved_gflop_s"] / figures["roofline_gflop_s"])
    assert figures["parameters_million"] == pytest.approx(parameter_count(Step(TINY, "float32").model) / 1e6)
    assert "mfu" not in figures, "there is no peak for a CPU"


def test_losses_are_compared_step_by_step() -> None:
    one = {"metrics": [{"loss": 1.0}, {"loss": 2.0}]}
    other = {"metrics": [{"loss": 1.5}, {"loss": 2.25}]}
    assert learner.loss_difference(one, other) == 0.5
