from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from learner.evaluation.pass_at_k import Estimate, check_pass_at, estimate_pass_at_k, pass_at_k
from rollcast.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("samples", "correct", "k"), [(8, 3, 1), (8, 3, 2), (6, 5, 3), (5, 0, 2), (5, 5, 5), (4, 1, 4)]
)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples: int, correct: int, k: int) -> None:
    draws = list(itertools.combinations([True] * correct + [False] * (samples - correct), k))
    assert pass_at_k(samples, correct, k) == pytest.approx(float(Fraction(sum(map(any, draws)), len(draws))))


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_impossible_counts_are_refused(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, correct, k)


def test_the_interval_is_that_of_the_mean_over_problems() -> None:
    found = estimate_pass_at_k(4, [0, 4, 2, 2], 1)
    assert found.mean == pytest.approx(0.5)
    reach = 1.96 * np.std([0.0, 1.0, 0.5, 0.5], ddof=1) / 2
    assert (found.low, found.high) == pytest.approx((0.5 - reach, 0.5 + reach))
    assert estimate_pass_at_k(4, [4, 4], 4) == Estimate(1.0, 1.0, 1.0)
    assert estimate_pass_at_k(4, [1], 1) == Estimate(0.25, 0.0, 1.0)
    with pytest.raises(ValueError, match="no problem"):
        estimate_pass_at_k(4, [], 1)


@pytest.mark.parametrize(("pass_at", "message"), [((), "at least 1"), ((1, 0), "at least 1"), ((1, 9), "pass@9")])
def test_a_k_that_cannot_be_estimated_is_refused(pass_at: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_pass_at(8, pass_at)
    check_pass_at(8, (1, 8))
