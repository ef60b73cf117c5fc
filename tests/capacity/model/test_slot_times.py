from __future__ import annotations

import math
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model.slot_times import LONGEST, Draws, fit_log_normal, log_normal, mean_of_longest, mean_rest


@given(st.floats(0.05, 0.9), st.integers(1, 16), st.floats(0.01, 1e4))
def test_what_was_fitted_has_the_mean_and_the_p90_that_were_given(sigma: float, count: int, median_s: float) -> None:
    mean_s = median_s * mean_of_longest(sigma, count)
    drawn = [(share + 0.5) / 2000 for share in range(2000)]
    p90 = sorted(drawn)[1800]
    z = _normal(p90 ** (1.0 / count))
    found_median_s, found_sigma = fit_log_normal(mean_s, median_s * math.exp(sigma * z), count)
    assert found_sigma == pytest.approx(sigma, rel=0.02, abs=0.005)
    assert found_median_s == pytest.approx(median_s, rel=0.02)


def _normal(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


def test_times_without_spread_keep_their_mean() -> None:
    assert fit_log_normal(10.0, 10.0) == (pytest.approx(10.0, rel=1e-3), pytest.approx(0.0, abs=0.05))
    median_s, sigma = fit_log_normal(10.0, 1000.0)
    assert sigma > 1.0, "as much as a log-normal distribution can have"
    assert median_s * mean_of_longest(sigma, 1) == pytest.approx(10.0)


def test_a_mean_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        fit_log_normal(0.0, 1.0)
    with pytest.raises(ValueError, match="at least 1"):
        fit_log_normal(1.0, 1.0, 0)


def test_draws_are_normal_and_the_same_each_time() -> None:
    draws = Draws(3)
    found = [draws.normal() for _ in range(4000)]
    assert fmean(found) == pytest.approx(0.0, abs=0.05)
    assert quantiles(found, n=10)[-1] == pytest.approx(1.2816, abs=0.08)
    again, other = Draws(3), Draws(4)
    assert found[:5] == [again.normal() for _ in range(5)]
    assert found[0] != other.normal()


def test_half_of_a_time_without_spread_is_left_on_average() -> None:
    assert mean_rest(0.0, 1) == pytest.approx(0.5)
    assert mean_rest(0.8, 1) > 0.8, "long ones are met more often"


def test_no_time_is_longer_than_a_completion_may_be() -> None:
    median_s, sigma = fit_log_normal(42.7, 117.6, 32)  # of one rollout: of the longest of 32 it cannot be
    assert sigma < 1.5, "what is nearest, not what has no mean"
    assert median_s * mean_of_longest(sigma, 32) == pytest.approx(42.7)
    draws = Draws(1)
    assert max(log_normal(2.5, draws) for _ in range(2000)) == LONGEST
