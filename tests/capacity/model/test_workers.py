from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.workers import Speed, Worker

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
