from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learner.objective.advantages import advantages
from learner.objective.aggregates import constant_length, token_mean, token_weights, trajectory_mean
from learner.objective.config import ObjectiveConfig

LENGTHS = np.array([4, 1, 0, 3])
ADVANTAGES = np.array([1.0, 0.0, 0.5, -1.0])
GROUPS = np.array([5, 2, 5, 5])


def test_the_three_ways_to_average() -> None:
    once = np.array([1.0, 1.0, 0.0, 1.0])
    assert token_mean(LENGTHS, once).tolist() == [1 / 8, 1 / 8, 0, 1 / 8]
    assert trajectory_mean(LENGTHS, once).tolist() == pytest.approx([1 / 12, 1 / 3, 0, 1 / 9])
    assert constant_length(once, 10).tolist() == pytest.approx([1 / 30, 1 / 30, 0, 1 / 30])


@pytest.mark.parametrize("aggregate", ["token-mean", "trajectory-mean", "constant-length"])
def test_a_sequence_that_counts_twice_is_one_that_is_there_twice(aggregate: str) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate})
    found = token_weights(config, LENGTHS, ADVANTAGES, GROUPS, 10, np.array([2.0, 0.0, 1.0, 1.0]))
    there = [0, 0, 2, 3]
    repeated = token_weights(config, LENGTHS[there], ADVANTAGES[there], GROUPS[there], 10)
    assert found.tolist() == pytest.approx([repeated[0] + repeated[1], 0.0, repeated[2], repeated[3]])


@pytest.mark.parametrize("aggregate", ["token-mean", "trajectory-mean"])
def test_means_add_up_to_one(aggregate: str) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate})
    assert (token_weights(config, LENGTHS, ADVANTAGES, GROUPS, 10) * LENGTHS).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("token-mean", [1 / 7, 0, 0, 1 / 7]),
        ("trajectory-mean", [1 / 8, 0, 0, 1 / 6]),
        ("constant-length", [1 / 20, 0, 0, 1 / 20]),
    ],
)
def test_dynamic_sampling_leaves_out_groups_without_any_advantage(aggregate: str, expected: list[Any]) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate, "dynamic_sampling": True})
    assert token_weights(config, LENGTHS, ADVANTAGES, GROUPS, 10).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("aggregate", ["token-mean", "trajectory-mean", "constant-length"])
def test_a_batch_without_advantage_has_no_weight_at_all(aggregate: str) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate, "dynamic_sampling": True})
    assert token_weights(config, LENGTHS, np.zeros(4), GROUPS, 10).tolist() == [0.0] * 4


def test_dynamic_sampling_counts_tokens_of_partial_rewards() -> None:
    """Rewards 1, 0.5 and 0: the middle completion has advantage 0, and its 5 of 36 tokens count (DAPO, equation 8)."""
    config = ObjectiveConfig.model_validate({"algorithm": "dapo", "overlong_share": 0.0})
    lengths, groups, ratio = np.array([9, 5, 22, 4, 6]), np.array([1, 1, 1, 8, 8]), 1.00122
    worth = advantages(config, np.array([1.0, 0.5, 0.0, 1.0, 1.0]), groups)
    weights = token_weights(config, lengths, worth, groups, 32)
    surrogates = lengths * ratio * worth
    assert -(weights * surrogates).sum() == pytest.approx(-surrogates.sum() / 36, rel=1e-9)
    assert -(weights * surrogates).sum() == pytest.approx(0.4427, abs=5e-5)
    assert -surrogates.sum() / 31 == pytest.approx(0.5141, abs=5e-5)  # without those tokens
