from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model.workers import lost_share, lost_work_s


def test_a_worker_that_nobody_takes_away_loses_nothing() -> None:
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


def test_nonsense_is_refused() -> None:
    for wrong in ((-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, -1.0)):
        with pytest.raises(ValueError, match="negative"):
            lost_share(*wrong)
    with pytest.raises(ValueError, match="positive"):
        lost_work_s(t_gen_mean_s=0.0, t_gen_mean_square_s2=0.0)
