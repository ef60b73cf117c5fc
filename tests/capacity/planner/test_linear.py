from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

from bench.planner.capacity_pools import demand as bench_demand
from bench.planner.capacity_pools import pool as bench_pool
from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner import linear
from capacity.planner.columns import columns_of
from capacity.planner.linear import relax
from capacity.planner.matrix import matrix_of
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from capacity.planner.totals import totals_of
from tests.capacity.planner.plan_strategies import demands, pools
from tests.capacity.planner.test_planner import demand, worker


def test_the_bound_and_the_duals_of_a_small_programme() -> None:
    """Half a worker of the dearer kind is the last that is needed."""
    workers = [worker(number) for number in range(4)] + [worker(4, usd_per_hour=3.0, speeds=worker(0).speeds)]
    found = relax(programme_of(demand(headroom=0.9), columns_of(workers), Split(20.0, 100.0)))
    assert found is not None
    assert found.bound == pytest.approx(4 + 0.5 * 3.0)
    assert found.duals[("rate", "")] == pytest.approx(3.0)
    assert found.reduced.tolist() == pytest.approx([-2, -2, -2, -2, 0])


def test_the_relay_row_has_a_price_per_copy() -> None:
    """Workers without an uplink are cheap, but copies for them must come from dear ones."""
    workers = [worker(number, usd_per_hour=0.1, relays=False) for number in range(10)]
    workers += [worker(number + 10, usd_per_hour=2.0, upload_bytes_per_second=1e8) for number in range(10)]
    found = relax(programme_of(demand(learner_upload_bytes_per_second=1.1e7), columns_of(workers), Split(20.0, 100.0)))
    assert found is not None
    assert found.duals[("relay", "")] > 0
    assert found.x[10:].sum() > 0


@settings(deadline=None, max_examples=40)
@given(demands(), pools(most=10))
def test_a_set_that_holds_every_row_never_costs_less_than_the_bound(wanted: Demand, workers: list[Worker]) -> None:
    programme = programme_of(wanted, columns_of(workers), Split(20.0, max(1.0, wanted.budget_s - 20.0)))
    found, totals = relax(programme), totals_of(programme)
    rng = np.random.default_rng(0)
    for _ in range(30):
        chosen = (rng.random(len(workers)) < rng.random()) & (programme.upper > 0)
        sums = totals.of(chosen)[None, :]
        if chosen.any() and programme.origin_feeds >= 1 and totals.feasible(sums)[0]:
            assert found is not None
            assert totals.usd_per_hour(sums)[0] >= found.bound * (1 - 1e-7) - 1e-9


def test_sifting_reaches_the_optimum_over_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, columns = bench_demand(512), columns_of(bench_pool(600, seed=1))
    programme = programme_of(wanted, columns, Split(200.0, wanted.budget_s - 200.0))
    monkeypatch.setattr(linear, "WORKING_COLUMNS", 40)
    monkeypatch.setattr(linear, "ADDED_COLUMNS", 20)
    sifted = relax(programme)
    assert sifted is not None
    matrix = matrix_of(programme)
    whole = linprog(
        np.concatenate([matrix.cost, matrix.extra_cost]),
        A_ub=np.hstack([matrix.workers.toarray(), matrix.extra.toarray()]),
        b_ub=matrix.limit,
        bounds=list(
            zip(
                np.concatenate([matrix.lower, matrix.extra_lower]),
                np.concatenate([programme.upper, matrix.extra_upper]),
                strict=True,
            )
        ),
    )
    assert sifted.bound == pytest.approx(whole.fun, rel=1e-7)
    near = relax(programme, sifted)
    assert near is not None
    assert near.bound == pytest.approx(whole.fun, rel=1e-7)


def test_the_tangent_of_the_chance_row_comes_to_rest_at_the_deviation() -> None:
    workers = [worker(number, preemptions_per_hour=1.0, lost_per_preemption_s=720.0) for number in range(40)]
    found = relax(programme_of(demand(chance_z=2.33), columns_of(workers), Split(20.0, 100.0)))
    assert found is not None
    deviation = float(np.sqrt(found.programme.variance @ found.x))
    assert found.programme.deviation == pytest.approx(deviation, rel=1e-3)
    assert found.programme.useful @ found.x - 2.33 * deviation == pytest.approx(5.0, rel=1e-3)


def test_no_solution_is_none() -> None:
    columns = columns_of([worker(0)])
    assert relax(programme_of(demand(), columns, Split(20.0, 100.0))) is None
    slow = replace(demand(), learner_upload_bytes_per_second=1e3)
    assert relax(programme_of(slow, columns, Split(20.0, 100.0))) is None
    assert relax(programme_of(demand(), columns, Split(1.0, 100.0))) is None
