"""Test how many rollouts a worker generates per second: its rates, its slots, and the cost of preemption."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model.demand import rollout_rate_needed
from capacity.model.slot_times import (
    LONGEST,
    Draws,
    fit_log_normal,
    log_normal_shape,
    longest_quantile,
    mean_longest,
    mean_of_longest,
    mean_rest,
    residual_shape,
)
from capacity.model.workers import Speed, Worker, lost_share, lost_work_s


@given(st.floats(0.05, 0.9), st.integers(1, 16), st.floats(0.01, 1e4))
def test_what_was_fitted_has_the_mean_and_the_p90_that_were_given(sigma: float, count: int, median_s: float) -> None:
    mean_s = median_s * mean_of_longest(sigma, count)
    sampled = [(share + 0.5) / 2000 for share in range(2000)]
    p90 = sorted(sampled)[1800]
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


def test_samples_have_the_shape_and_are_the_same_each_time() -> None:
    shape, draws = log_normal_shape(0.5), Draws(3)
    found = [draws.of(shape) for _ in range(4000)]
    assert fmean(found) == pytest.approx(1.0, abs=0.05)
    assert quantiles(found, n=10)[-1] == pytest.approx(math.exp(1.2816 * 0.5 - 0.125), rel=0.08)
    again, other = Draws(3), Draws(4)
    assert found[:5] == [again.of(shape) for _ in range(5)]
    assert found[0] != other.of(shape)


def test_a_group_is_as_long_as_its_longest_rollout() -> None:
    shape = (0.5, 0.5, 0.5, 2.5)
    assert longest_quantile(shape, 1, 0.7) == 0.5
    assert longest_quantile(shape, 4, 0.7) == 2.5, "one of four is the long one in 68 of 100 groups"
    assert mean_longest(shape, 1) == pytest.approx(1.0)
    assert mean_longest(shape, 4) == pytest.approx(2.5 - 2.0 * 0.75**4)


def test_what_is_left_of_a_rollout_is_half_of_a_long_one() -> None:
    assert fmean(residual_shape((1.0,) * 8)) == pytest.approx(0.5, abs=0.02)
    assert fmean(residual_shape((0.5, 1.5) * 8)) == pytest.approx((0.25 + 2.25) / 2 / 2, abs=0.03), "E[X^2] / 2 E[X]"


def test_half_of_a_time_without_spread_is_left_on_average() -> None:
    assert mean_rest(0.0, 1) == pytest.approx(0.5)
    assert mean_rest(0.8, 1) > 0.8, "long ones are met more often"


def test_no_time_is_longer_than_a_completion_may_be() -> None:
    median_s, sigma = fit_log_normal(42.7, 117.6, 32)  # of one rollout; the longest of 32 cannot have it
    assert sigma < 1.5, "the nearest that has a mean"
    assert median_s * mean_of_longest(sigma, 32) == pytest.approx(42.7)
    shape = log_normal_shape(2.5)
    assert max(shape) / shape[len(shape) // 2] <= LONGEST * 1.01


SLOW, MIDDLE, FAST = Speed(1, 1.0, 10.0), Speed(8, 5.0, 20.0), Speed(32, 9.0, 60.0)

WORKER = Worker(
    worker_id="w",
    speeds=(SLOW, MIDDLE, FAST),
    usd_per_hour=0.4,
    upload_bytes_per_second=1e6,
    download_bytes_per_second=1e7,
)


@pytest.mark.parametrize(("t_gen_s", "speed"), [(5.0, None), (10.0, SLOW), (59.9, MIDDLE), (60.0, FAST), (1e9, FAST)])
def test_it_takes_the_fastest_speed_that_is_young_enough(t_gen_s: float, speed: Speed | None) -> None:
    assert WORKER.fastest_within(t_gen_s) is speed


def test_preemptions_cost_the_share_that_they_take() -> None:
    assert WORKER.preemption_loss == 0.0
    assert replace(WORKER, preemptions_per_hour=1.8, lost_per_preemption_s=300.0).preemption_loss == pytest.approx(0.15)
    assert replace(WORKER, preemptions_per_hour=60.0, lost_per_preemption_s=300.0).preemption_loss == 1.0


def test_workers_that_receive_in_the_background_match_consumption() -> None:
    assert rollout_rate_needed(rollouts_per_step=512, t_train_s=64.0, t_bcast_s=1000.0) == 8.0


def test_workers_that_pause_make_up_for_it_in_the_rest_of_the_step() -> None:
    rate = rollout_rate_needed(
        rollouts_per_step=512, t_train_s=60.0, t_bcast_s=56.0, publish_every_steps=2, pauses_while_receiving=True
    )
    assert rate == 16.0


def test_no_rate_is_enough_when_there_is_only_time_to_receive() -> None:
    for t_bcast_s in (60.0, 61.0):
        assert (
            rollout_rate_needed(rollouts_per_step=512, t_train_s=60.0, t_bcast_s=t_bcast_s, pauses_while_receiving=True)
            is None
        )


@pytest.mark.parametrize(
    "wrong", [{"rollouts_per_step": 0}, {"t_train_s": 0.0}, {"t_bcast_s": -1.0}, {"publish_every_steps": 0}]
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    values = {"rollouts_per_step": 1, "t_train_s": 1.0}
    with pytest.raises(ValueError, match="at least 1"):
        rollout_rate_needed(**{**values, **wrong})  # type: ignore[arg-type]


def test_a_worker_without_preemptions_loses_nothing() -> None:
    assert lost_share(0.0, 300.0, 60.0) == 0.0


def test_worked_examples() -> None:
    assert lost_share(1.8, 300.0) == pytest.approx(0.15)
    assert lost_share(6.0, 100.0, 200.0) == pytest.approx(300 / 800)
    assert lost_share(60.0, 300.0) == 1.0


@given(st.floats(0, 60), st.floats(0, 1000), st.floats(0, 1000))
def test_a_restart_counted_as_lost_work_is_never_less(rate: float, work_s: float, restart_s: float) -> None:
    assert 0.0 <= lost_share(rate, work_s, restart_s) <= lost_share(rate, work_s + restart_s) + 1e-12


def test_the_share_is_that_of_a_simulated_worker() -> None:
    generator, useful_s, all_s = random.Random(0), 0.0, 0.0
    for _ in range(20_000):
        up_s = generator.expovariate(2.0 / 3600.0)
        useful_s, all_s = useful_s + max(0.0, up_s - 60.0), all_s + up_s + 240.0
    assert 1 - useful_s / all_s == pytest.approx(lost_share(2.0, 60.0, 240.0), abs=0.01)


def test_work_under_way_is_weighted_to_long_rollouts() -> None:
    assert lost_work_s(t_gen_mean_s=100.0, t_gen_mean_square_s2=100.0**2) == 50.0
    assert lost_work_s(t_gen_mean_s=100.0, t_gen_mean_square_s2=2 * 100.0**2) == 100.0  # memoryless
    assert lost_work_s(t_gen_mean_s=100.0, t_gen_mean_square_s2=100.0**2, notice_s=120.0) == 0.0


def test_preemption_that_makes_no_sense_is_refused() -> None:
    for wrong in ((-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, -1.0)):
        with pytest.raises(ValueError, match="negative"):
            lost_share(*wrong)
    with pytest.raises(ValueError, match="positive"):
        lost_work_s(t_gen_mean_s=0.0, t_gen_mean_square_s2=0.0)
