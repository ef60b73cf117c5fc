from __future__ import annotations

import pytest

from bench.capacity.baselines import BASELINES, judged
from bench.planner.capacity_pools import demand as bench_demand
from bench.planner.capacity_pools import pool as bench_pool
from capacity.model.workers import Speed
from capacity.planner.columns import columns_of
from capacity.planner.planner import plan
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from tests.capacity.planner.test_planner import demand, worker


def test_rules_pick_by_their_own_score() -> None:
    workers = [worker(number, usd_per_hour=1.0) for number in range(10)]
    workers += [worker(number + 10, usd_per_hour=1.5, speeds=(Speed(1, 2.5, 20.0),)) for number in range(3)]
    programme = programme_of(demand(), columns_of(workers), Split(20.0, 100.0))
    found = {name: judged(name, programme) for name in BASELINES}
    assert found["cheapest_first"].usd_per_hour == 5.0
    assert found["price_per_throughput"].usd_per_hour == 3.0
    assert found["multi_row_greedy"].usd_per_hour == 3.0
    assert all(result.feasible for result in found.values())


def test_without_an_eye_on_links_versions_come_late() -> None:
    """The pools of the benchmark, smaller."""
    wanted, workers = bench_demand(1024), bench_pool(1200, seed=3)
    made = plan(wanted, workers)
    programme = programme_of(wanted, columns_of(workers), made.split)
    found = {name: judged(name, programme) for name in BASELINES}
    assert made.feasible
    assert not found["cheapest_first"].feasible
    assert found["cheapest_first"].t_bcast_s > made.split.t_bcast_s
    assert found["multi_row_greedy"].feasible
    assert found["multi_row_greedy"].usd_per_hour >= made.usd_per_hour * (1 - 1e-9)


@pytest.mark.parametrize("name", BASELINES)
def test_an_impossible_programme_ends(name: str) -> None:
    programme = programme_of(demand(rollouts_per_step=10**6), columns_of([worker(0)]), Split(20.0, 100.0))
    assert not judged(name, programme).feasible
