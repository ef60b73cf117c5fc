from __future__ import annotations

import pytest

from capacity.model.demand import NOTICE_S, Conduct, Demand, publish_seconds
from capacity.model.workers import Speed, Worker
from rollcast.sim.fleet import Fleet
from rollcast.sim.validation import fleet_settings, validate

DEMAND = Demand(
    rollouts_per_step=12,
    t_train_s=60.0,
    staleness_limit=5,
    update_bytes=5e7,
    learner_upload_bytes_per_second=1e8,
    t_load_s=2.0,
    t_score_s=0.5,
)
CONDUCT = Conduct(
    samples_per_group=4,
    whole_batches=True,
    prefetch_s=90.0,
    t_publish_s=publish_seconds(5e7, 1e8),
    t_notice_s=NOTICE_S,
)


def workers(*at_once: int, per_hour: float = 0.0) -> list[tuple[Worker, Speed]]:
    return [_worker(number, count, per_hour) for number, count in enumerate(at_once)]


def _worker(number: int, count: int, per_hour: float) -> tuple[Worker, Speed]:
    speed = Speed(count, count / 70.0, 100.0)
    worker = Worker(
        worker_id=f"w{number}",
        speeds=(speed,),
        usd_per_hour=0.0,
        upload_bytes_per_second=1e7,
        download_bytes_per_second=2e7,
        preemptions_per_hour=per_hour,
        lost_per_preemption_s=180.0,
    )
    return worker, speed


def test_simulated_and_predicted_agree() -> None:
    found = validate(DEMAND, workers(2, 2, 2, 2, 2), CONDUCT, seed=0, warm_up_steps=15, steps=40)
    assert found.violations == 0
    errors = found.errors()
    assert set(errors) == {"utilisation", "t_bcast_s", "mean_staleness"}
    assert max(errors.values()) < 0.2, f"{found}: a short run of few workers is noisy, but no more than that"
    assert found.to_json()["errors"] == errors


def test_engines_have_the_speed_of_their_workers() -> None:
    settings = fleet_settings(DEMAND, workers(1, 4), CONDUCT)
    assert [engine.concurrent_rollouts for engine in settings.engines] == [1, 4]
    fleet = Fleet(settings, 0)
    fleet.run(40 * 60.0)
    made = [peer.worker.accepted for peer in fleet.peers if peer.worker is not None]
    assert made[1] / made[0] == pytest.approx(4.0, rel=0.3)


def test_preempted_workers_return() -> None:
    found = validate(DEMAND, workers(2, 2, 2, per_hour=4.0), CONDUCT, seed=1, warm_up_steps=5, steps=20)
    assert found.violations == 0
    assert 0.0 < found.simulated.utilisation < 1.0


def test_a_plan_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="no workers"):
        validate(DEMAND, [], CONDUCT, seed=0)
