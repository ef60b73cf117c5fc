from __future__ import annotations

import pytest

from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker
from capacity.replan.corrections import Corrections

DEMAND = Demand(
    rollouts_per_step=10, t_train_s=20.0, staleness_limit=4, update_bytes=1e6, learner_upload_bytes_per_second=1e8
)


def test_without_a_measurement_nothing_changes() -> None:
    worker = Worker(
        worker_id="a",
        speeds=(Speed(8, 2.0, 10.0),),
        usd_per_hour=0.0,
        upload_bytes_per_second=1.0,
        download_bytes_per_second=1.0,
    )
    assert Corrections().demand(DEMAND) == DEMAND
    assert Corrections().worker(worker) is worker
    slower = Corrections(rate=0.5).worker(worker).speeds[0]
    assert (slower.rollouts_per_second, slower.t_gen_p90_s) == (1.0, 20.0)


def test_the_rate_follows_workers_that_limit() -> None:
    made = Corrections()
    for _ in range(30):
        made = made.with_rate(8.0, 10.0, workers_limit=True)
    assert made.rate == pytest.approx(0.8, abs=0.01)


def test_workers_that_do_not_limit_can_do_what_they_did_at_least() -> None:
    low = Corrections(rate=0.5)
    assert low.with_rate(9.0, 10.0, workers_limit=False).rate == pytest.approx(0.905)
    assert low.with_rate(1.0, 10.0, workers_limit=False).rate == pytest.approx(0.525)  # it fades: that may be over
    assert Corrections(rate=1.2).with_rate(1.0, 10.0, workers_limit=False).rate == pytest.approx(1.19)


def test_factors_are_bounded_and_a_rest_is_an_overhead() -> None:
    made = Corrections()
    for _ in range(60):
        made = made.with_rate(0.0, 10.0, workers_limit=True).with_t_bcast(0.5, 0.001).with_t_train(1000.0, 20.0)
    assert (made.rate, made.t_bcast, made.t_train) == pytest.approx((0.25, 4.0, 4.0), abs=0.01)
    assert made.overhead_s == pytest.approx(0.5 - 4.0 * 0.001, abs=0.01)
    corrected = made.demand(DEMAND)
    assert corrected.t_load_s == made.overhead_s
    assert corrected.t_train_s == pytest.approx(80.0, rel=0.01)


def test_what_is_predicted_to_take_no_time_is_all_overhead() -> None:
    assert Corrections().with_t_bcast(1.0, 0.0).overhead_s == pytest.approx(0.3)


def test_busy_workers_that_a_learner_waits_for_make_less_than_it_needs() -> None:
    assert Corrections().with_too_little(8.0, 10.0).rate == pytest.approx(0.8)
    assert Corrections().with_too_little(8.0, 5.0).rate == 1.0  # as predicted
    assert Corrections().with_too_little(8.0, 0.0) == Corrections()
