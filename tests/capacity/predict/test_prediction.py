from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.demand import Conduct, Demand
from capacity.model.workers import Speed, Worker
from capacity.predict.prediction import ModelledRuns, predict

DEMAND = Demand(
    rollouts_per_step=32,
    t_train_s=60.0,
    staleness_limit=5,
    update_bytes=2e8,
    learner_upload_bytes_per_second=1e8,
    t_load_s=2.0,
)
CONDUCT = Conduct(samples_per_group=4, whole_batches=True, prefetch_s=60.0)
SPEED = Speed(2, 2 / 60.0, 85.0)


def workers(count: int, speed: Speed = SPEED, download: float = 2.5e7) -> list[tuple[Worker, Speed]]:
    return [
        (
            Worker(
                worker_id=f"w{number}",
                speeds=(speed,),
                usd_per_hour=0.0,
                upload_bytes_per_second=1e7,
                download_bytes_per_second=download,
            ),
            speed,
        )
        for number in range(count)
    ]


def test_too_few_workers_use_the_learner_as_far_as_their_rate_goes() -> None:
    found = predict(DEMAND, workers(12), CONDUCT, steps=60)  # 12 x 2 = 24 of 32 rollouts a step
    assert found.utilisation == pytest.approx(0.75, rel=0.05)
    assert found.dropped_share < 0.02


def test_enough_workers_keep_it_busy() -> None:
    found = predict(DEMAND, workers(22), CONDUCT, steps=60)
    assert found.utilisation == pytest.approx(1.0, abs=0.01)
    assert 2.0 < found.mean_staleness <= 5.0


def test_t_bcast_is_the_fluid_bound_and_a_slow_downlink_is_the_last() -> None:
    found = predict(DEMAND, workers(20), CONDUCT, steps=20)
    assert found.t_bcast_s == pytest.approx(1.06 * 20 * 2e8 / (1e8 + 20 * 1e7), rel=1e-3)
    slow = workers(19) + workers(1, download=5e6)
    assert predict(DEMAND, slow, CONDUCT, steps=20).t_bcast_s == pytest.approx(1.06 * 40.0, rel=1e-3)


def test_a_limit_that_is_too_small_costs_work() -> None:
    found = predict(replace(DEMAND, staleness_limit=2), workers(22), CONDUCT, steps=60)
    assert found.utilisation < 0.99
    assert found.dropped_share > 0.05


def test_a_large_fleet_is_sampled() -> None:
    large = replace(DEMAND, rollouts_per_step=320)
    found = predict(large, workers(120), CONDUCT, steps=40)
    assert found.utilisation == pytest.approx(0.75, rel=0.05)
    slow = workers(119) + workers(1, download=5e6)
    assert predict(large, slow, CONDUCT, steps=20, draws=1).t_bcast_s == pytest.approx(1.06 * 40.0, rel=1e-3)


def test_a_smaller_sample_predicts_about_the_same() -> None:
    fleet = workers(40)
    demand = replace(DEMAND, rollouts_per_step=10 * DEMAND.rollouts_per_step)
    whole, sampled = (predict(demand, fleet, CONDUCT, draws=1, workers_max=most) for most in (40, 8))
    assert sampled.utilisation == pytest.approx(whole.utilisation, abs=0.1)
    assert sampled.t_bcast_s == pytest.approx(whole.t_bcast_s, rel=0.1)


def test_no_prediction_without_workers() -> None:
    with pytest.raises(ValueError, match="without workers"):
        predict(DEMAND, [])


def test_a_prediction_that_is_made_longer_is_the_long_one() -> None:
    runs = ModelledRuns(DEMAND, workers(14), CONDUCT)
    runs.predict(20, 10, 1)
    runs.predict(40, 20, 1)
    found = runs.predict(40, 20, 2)
    assert found == predict(DEMAND, workers(14), CONDUCT, warm_up_steps=40, steps=20, draws=2)
    with pytest.raises(ValueError, match="has passed step 60"):
        runs.predict(20, 10, 1)
