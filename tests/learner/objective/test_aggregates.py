from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learner.objective.aggregates import constant_length, token_mean, token_weights, trajectory_mean
from learner.objective.config import ObjectiveConfig

LENGTHS = np.array([4, 1, 0, 3])
ADVANTAGES = np.array([1.0, 0.0, 0.5, -1.0])


def test_the_three_ways_to_average() -> None:
    assert token_mean(LENGTHS).tolist() == [1 / 8] * 4
    assert trajectory_mean(LENGTHS)[[0, 1, 3]].tolist() == pytest.approx([1 / 12, 1 / 3, 1 / 9])
    assert constant_length(LENGTHS, 10).tolist() == pytest.approx([1 / 30] * 4)


@pytest.mark.parametrize("aggregate", ["token-mean", "trajectory-mean"])
def test_means_add_up_to_one(aggregate: str) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate})
    assert (token_weights(config, LENGTHS, ADVANTAGES, 10) * LENGTHS).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("token-mean", [1 / 7, 0, 0, 1 / 7]),
        ("trajectory-mean", [1 / 8, 0, 0, 1 / 6]),
        ("constant-length", [1 / 20, 0, 0, 1 / 20]),
    ],
)
def test_dynamic_sampling_counts_sequences_with_an_advantage_only(aggregate: str, expected: list[Any]) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate, "dynamic_sampling": True})
    assert token_weights(config, LENGTHS, ADVANTAGES, 10).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("aggregate", ["token-mean", "trajectory-mean", "constant-length"])
def test_a_batch_without_advantage_has_no_weight_at_all(aggregate: str) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate, "dynamic_sampling": True})
    assert token_weights(config, LENGTHS, np.zeros(4), 10).tolist() == [0.0] * 4
