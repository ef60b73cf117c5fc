from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.catalogue.token_lengths import lengths_named
from capacity.model.lengths import LengthDistribution, generation_times

seen = st.lists(st.integers(0, 5000), min_size=1, max_size=50)


@given(seen)
def test_moments_and_quantiles_are_those_of_the_lengths_seen(lengths: list[int]) -> None:
    found = LengthDistribution.from_lengths(lengths)
    assert found.mean == pytest.approx(np.mean(lengths))
    assert found.mean_square == pytest.approx(np.mean(np.square(lengths)))
    assert found.quantile(1.0) == max(lengths)
    assert found.quantile(0.5) == np.quantile(lengths, 0.5, method="inverted_cdf")
    assert found.expected_longest(1) == pytest.approx(found.mean)
    assert found.expected_longest(10_000) == pytest.approx(max(lengths), rel=0.01, abs=1.0)


@given(seen, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise(lengths: list[int], one: float, other: float) -> None:
    found = LengthDistribution.from_lengths(lengths)
    low, high = sorted((one, other))
    assert found.quantile(low) <= found.quantile(high)


def test_the_expected_longest_of_two_dice() -> None:
    die = LengthDistribution.from_lengths(range(1, 7))
    assert die.expected_longest(2) == pytest.approx(161 / 36)


def test_a_rollout_under_way_is_longer_than_half_the_mean() -> None:
    found = LengthDistribution.from_lengths([100] * 99 + [10_000])
    assert found.mean_made_so_far == pytest.approx((99 * 100**2 + 10_000**2) / (2 * (99 * 100 + 10_000)))
    assert LengthDistribution.from_lengths([10]).mean_made_so_far == 5.0


@given(seen, st.integers(1, 6000))
def test_capped_lengths_are_the_lesser_of_both(lengths: list[int], limit: int) -> None:
    capped = LengthDistribution.from_lengths(lengths).capped(limit)
    assert capped.mean == pytest.approx(np.minimum(lengths, limit).mean())
    assert capped.quantile(1.0) <= limit


def test_a_cut_inside_a_bin_moves_its_share() -> None:
    capped = LengthDistribution.from_bins([(0, 100, 1.0)]).capped(50)
    assert capped.mean == pytest.approx(np.minimum(np.arange(100), 50).mean())


def test_samples_follow_the_distribution() -> None:
    found = lengths_named("deepseek-r1")
    assert found is not None
    sampled = found.sample(np.random.default_rng(0), 100_000)
    assert sampled.mean() == pytest.approx(found.mean, rel=0.02)
    assert np.quantile(sampled, 0.9) == pytest.approx(found.quantile(0.9), rel=0.02)


def test_times_are_lengths_at_a_pace() -> None:
    times = generation_times(
        LengthDistribution.from_lengths(range(1, 101)), ms_per_token=20.0, first_token_s=1.0, rollouts=512
    )
    assert (times.mean_s, times.p50_s, times.p90_s, times.p99_s) == pytest.approx((2.01, 2.0, 2.8, 2.98))
    assert times.p99_s < times.longest_s <= 3.0


@pytest.mark.parametrize(
    "bins", [[], [(5, 5, 1)], [(5, 4, 1)], [(-1, 4, 1)], [(0, 5, 1), (4, 6, 1)], [(0, 1, -1)], [(0, 1, 0)]]
)
def test_bins_that_are_none_are_refused(bins: list[tuple[float, float, float]]) -> None:
    with pytest.raises(ValueError, match=r"bin|weights"):
        LengthDistribution.from_bins(bins)


def test_arguments_out_of_range_are_refused() -> None:
    one = LengthDistribution.from_lengths([1])
    with pytest.raises(ValueError, match="probability"):
        one.quantile(1.1)
    with pytest.raises(ValueError, match="longest"):
        one.expected_longest(0)
    with pytest.raises(ValueError, match="at least one token"):
        one.capped(0)
