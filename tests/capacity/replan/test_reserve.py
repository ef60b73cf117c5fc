"""Test that the reserve follows the price of an idle learner and the risk of the workers."""

from __future__ import annotations

from dataclasses import replace

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.replan.reserve import HEADROOM_LEAST, with_reserve
from tests.capacity.sample_plan import sample_worker

DEMAND = Demand(
    rollouts_per_step=100,
    t_train_s=10.0,
    staleness_limit=4,
    update_bytes=1e6,
    learner_upload_bytes_per_second=1e8,
    headroom=1.2,
    learner_usd_per_hour=20.0,
)


def pool(preemptions_per_hour: float, usd_per_hour: float = 1.0) -> list[Worker]:
    rate = max(speed.rollouts_per_second for speed in sample_worker(0, 1.0).speeds)
    number = int(20.0 / rate)
    one = replace(sample_worker(0, usd_per_hour), lost_per_preemption_s=300.0)
    return [replace(one, worker_id=f"w{place}", preemptions_per_hour=preemptions_per_hour) for place in range(number)]


def test_the_demand_stays_where_the_learner_has_no_price_or_the_workers_cost_nothing() -> None:
    assert with_reserve(replace(DEMAND, learner_usd_per_hour=0.0), pool(1.0)).headroom == 1.2
    assert with_reserve(DEMAND, pool(1.0, 0.0)).headroom == 1.2


def test_a_calm_market_needs_no_reserve() -> None:
    assert with_reserve(DEMAND, pool(0.0)).headroom == HEADROOM_LEAST


def test_the_reserve_grows_with_the_risk_and_with_the_learner_s_price() -> None:
    risky, riskier = (with_reserve(DEMAND, pool(rate)).headroom for rate in (0.6, 3.0))
    assert HEADROOM_LEAST < risky < riskier
    dearer = with_reserve(replace(DEMAND, learner_usd_per_hour=200.0), pool(0.6)).headroom
    assert dearer > risky
    assert with_reserve(replace(DEMAND, learner_usd_per_hour=0.01), pool(0.6)).headroom == HEADROOM_LEAST


def test_workers_pinned_off_or_not_measured_do_not_count() -> None:
    workers = [*pool(0.6), replace(pool(0.0)[0], worker_id="free", usd_per_hour=0.0, pin="off")]
    workers.append(replace(workers[0], worker_id="new", speeds=()))
    assert with_reserve(DEMAND, workers) == with_reserve(DEMAND, pool(0.6))
