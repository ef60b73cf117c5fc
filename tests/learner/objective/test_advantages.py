from __future__ import annotations

import numpy as np
import pytest

from learner.objective.advantages import (
    advantages,
    generalised_advantages,
    group_normalised,
    leave_one_out,
    shaped_rewards,
    whitened,
)
from learner.objective.config import ObjectiveConfig

REWARDS = np.array([1.0, 0.0, 0.0, 5.0, 7.0, 1.0])
GROUPS = np.array([4, 9, 4, 9, 9, 4])


def test_advantages_are_normalised_within_each_group() -> None:
    found = group_normalised(REWARDS, GROUPS, 1e-4)
    for group in (4, 9):
        own = REWARDS[group == GROUPS]
        np.testing.assert_allclose(found[group == GROUPS], (own - own.mean()) / (own.std() + 1e-4), rtol=1e-12)


@pytest.mark.parametrize("advantage", ["group-normalised", "group-mean", "leave-one-out"])
def test_a_group_of_equal_rewards_teaches_nothing(advantage: str) -> None:
    config = ObjectiveConfig.model_validate({"advantage": advantage})
    assert np.all(advantages(config, np.full(3, 0.1), np.zeros(3, np.int64)) == 0.0)


def test_a_completion_alone_in_its_group_has_no_others() -> None:
    assert leave_one_out(np.array([3.0, 1.0, 2.0]), np.array([0, 1, 1])).tolist() == [0.0, -1.0, 1.0]


def test_reward_falls_towards_the_longest_completion() -> None:
    lengths = np.array([3, 6, 7, 8, 10])
    assert shaped_rewards(np.ones(5), lengths, 10, 0.4).tolist() == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.0])
    assert shaped_rewards(np.ones(5), lengths, 4, 0.2).tolist() == [1.0] * 5, "less than one token is none"


def plain_gae(rewards: list[float], values: list[float], discount: float, gae_lambda: float) -> list[float]:
    """Compute the sum of the definition, for one sequence."""
    after = [*values[1:], 0.0]
    surprises = [r + discount * v1 - v0 for r, v0, v1 in zip(rewards, values, after, strict=True)]
    return [
        sum((discount * gae_lambda) ** k * surprise for k, surprise in enumerate(surprises[start:]))
        for start in range(len(surprises))
    ]


def test_gae_is_its_definition_in_packed_rows_with_gaps() -> None:
    # Two sequences in one row: prompt, two trained, a tool's token, one trained; then prompt, two trained; padding.
    mask = np.array([[0, 1, 1, 0, 1, 0, 1, 1, 0]], bool)
    segments = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]], np.int32)
    values = np.array([[9.0, 0.5, 0.2, 9.0, 0.7, 9.0, 0.1, 0.4, 9.0]])
    rewards = np.array([[0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.0]])
    found = generalised_advantages(rewards, values, mask, segments, discount=0.9, gae_lambda=0.8)
    first = plain_gae([0.0, 0.0, 1.0], [0.5, 0.2, 0.7], 0.9, 0.8)
    second = plain_gae([0.0, 0.5], [0.1, 0.4], 0.9, 0.8)
    assert found[mask].tolist() == pytest.approx([*first, *second])
    assert np.all(found[~mask] == 0.0)


def test_whitened_values_have_mean_0_and_deviation_1_over_the_mask() -> None:
    mask = np.array([[True, False], [True, True]])
    found = whitened(np.array([[1.0, 99.0], [2.0, 6.0]]), mask, 0.0)
    assert found[mask].mean() == pytest.approx(0.0)
    assert found[mask].std() == pytest.approx(1.0)
    assert found[0, 1] == 0.0
    assert np.all(whitened(np.ones((1, 2)), np.zeros((1, 2), bool), 1e-4) == 0.0)
