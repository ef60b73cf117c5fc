"""Test the planner's linear programme: its columns, rows and totals, and the solver's answer to it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bench.planner.capacity_pools import demand as bench_demand
from bench.planner.capacity_pools import pool as bench_pool
from capacity.model.broadcast_bound import broadcast_seconds
from capacity.model.demand import Demand
from capacity.model.useful_rate import IN_TIME_SHARES
from capacity.model.workers import Speed, Worker
from capacity.planner import linear
from capacity.planner.columns import PRICE_LEVELS_MAX, columns_of
from capacity.planner.lagrangian import Prices, best_prices
from capacity.planner.linear import priced, relax
from capacity.planner.matrix import matrix_of
from capacity.planner.plans import Split
from capacity.planner.programme import copies_within, origin_feeds, programme_of, programme_over
from capacity.planner.splits import times_of
from capacity.planner.totals import Weights, copies_sent, egress_of, totals_of
from tests.capacity.planner.plan_checks import holds, usd_per_hour
from tests.capacity.planner.plan_strategies import TOPOLOGIES, demands, numbers, pools
from tests.capacity.planner.test_planner import demand, worker


def test_the_bound_and_the_duals_of_a_small_programme() -> None:
    """The last that is needed is half a worker of the dearer kind."""
    workers = [worker(number) for number in range(4)] + [worker(4, usd_per_hour=3.0, speeds=worker(0).speeds)]
    found = relax(programme_of(demand(headroom=0.9), columns_of(demand(), workers), Split(20.0, 100.0)))
    assert found is not None
    assert found.bound == pytest.approx(4 + 0.5 * 3.0)
    assert found.duals[("rate", "")] == pytest.approx(3.0)
    assert found.reduced.tolist() == pytest.approx([-2, -2, -2, -2, 0])


def test_the_relay_row_has_a_price_per_copy() -> None:
    """Workers without an uplink are cheap, but copies for them must come from dear ones."""
    workers = [worker(number, usd_per_hour=0.1, relays=False) for number in range(10)]
    workers += [worker(number + 10, usd_per_hour=2.0, upload_bytes_per_second=1e8) for number in range(10)]
    found = relax(
        programme_of(demand(learner_upload_bytes_per_second=1.1e7), columns_of(demand(), workers), Split(20.0, 100.0))
    )
    assert found is not None
    assert found.duals[("relay", "")] > 0
    assert found.x[10:].sum() > 0


@settings(deadline=None, max_examples=40)
@given(demands(), pools(most=10))
def test_a_set_that_holds_every_row_never_costs_less_than_the_bound(wanted: Demand, workers: list[Worker]) -> None:
    programme = programme_of(wanted, columns_of(wanted, workers), Split(20.0, max(1.0, wanted.budget_s - 20.0)))
    found, totals = relax(programme), totals_of(programme)
    rng = np.random.default_rng(0)
    for _ in range(30):
        chosen = (rng.random(len(workers)) < rng.random()) & (programme.upper > 0)
        sums = totals.of(chosen)[None, :]
        if chosen.any() and programme.origin_feeds >= 1 and totals.feasible(sums)[0]:
            assert found is not None
            assert totals.usd_per_hour(sums)[0] >= found.bound * (1 - 1e-7) - 1e-9


def test_sifting_reaches_the_optimum_over_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, columns = bench_demand(512), columns_of(demand(), bench_pool(600, seed=1))
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
    found = relax(programme_of(demand(chance_z=2.33), columns_of(demand(), workers), Split(20.0, 100.0)))
    assert found is not None
    deviation = float(np.sqrt(found.programme.own_variance @ found.x))
    at = found.programme.linearised_at
    assert at is not None
    assert found.programme.deviation(at) == pytest.approx(deviation, rel=1e-3)
    assert found.programme.useful @ found.x - 2.33 * deviation == pytest.approx(5.0, rel=1e-3)


def test_no_solution_is_none() -> None:
    columns = columns_of(demand(), [worker(0)])
    assert relax(programme_of(demand(), columns, Split(20.0, 100.0))) is None
    slow = replace(demand(), learner_upload_bytes_per_second=1e3)
    assert relax(programme_of(slow, columns, Split(20.0, 100.0))) is None
    assert relax(programme_of(demand(), columns, Split(1.0, 100.0))) is None


@given(
    st.sampled_from(TOPOLOGIES),
    st.lists(numbers(1e5, 1e8), min_size=1, max_size=6),
    numbers(1e6, 2e8),
    numbers(1.0, 1000.0),
)
def test_copies_are_the_broadcast_bound_of_every_shape(
    topology: object, uploads: list[float], source: float, tau_s: float
) -> None:
    """n copies are sent within tau exactly where the bound is at most tau; apart from ties."""
    wanted = demand(topology=topology, learner_upload_bytes_per_second=source)
    room = origin_feeds(wanted, tau_s) + copies_within(wanted, np.array(uploads), tau_s).sum()
    enough = room >= len(uploads) and origin_feeds(wanted, tau_s) >= 1
    far = np.full(len(uploads), 1e12)
    bound_s = broadcast_seconds(wanted.update_bytes, source, np.array(uploads), far, wanted.topology)
    if not math.isclose(bound_s, tau_s, rel_tol=1e-6):
        assert enough == (bound_s < tau_s)


def test_columns_of_a_split() -> None:
    workers = [
        worker(0, preemptions_per_hour=1.0, lost_per_preemption_s=360.0),
        worker(1, download_bytes_per_second=1e6),
        worker(2, pin="on", active=True),
        worker(3, pin="off"),
    ]
    wanted = demand(t_swap_s=6.0)
    programme = programme_of(wanted, columns_of(wanted, workers), Split(20.0, 100.0), incumbent_discount=0.25)
    assert programme.copy_bytes_per_second == pytest.approx(1.06e7)
    assert programme.useful.tolist() == pytest.approx([0.81, 0.9, 0.9, 0.9])
    assert programme.eligible.tolist() == [True, False, True, True]
    assert programme.lower.tolist() == [0, 0, 1, 0]
    assert programme.upper.tolist() == [1, 0, 1, 0]
    assert programme.cost.tolist() == [1.0, 1.0, 0.75, 1.0]
    assert programme.own_variance.tolist() == pytest.approx([0.81 * 0.09, 0, 0, 0])
    assert programme.rate_bought == 5.0


def test_workers_that_pause_need_more_rate() -> None:
    wanted = demand(pauses_while_receiving=True)
    columns = columns_of(demand(), [worker(0)])
    assert programme_of(wanted, columns, Split(20.0, 30.0)).rate_bought == 10.0
    assert programme_of(wanted, columns, Split(20.0, 60.0)).rate_needed is None


SPEEDS = (Speed(1, 0.1, 10.0), Speed(8, 0.5, 20.0), Speed(64, 0.4, 60.0))


def test_the_fastest_speed_that_fits_is_taken() -> None:
    columns = columns_of(demand(), [worker(0, speeds=SPEEDS), worker(1, speeds=SPEEDS[:1]), worker(2, speeds=())])
    for t_gen_s, index, rate in ((5.0, [-1, -1, -1], [0, 0, 0]), (100.0, [len(IN_TIME_SHARES), 0, -1], [0.5, 0.1, 0])):
        found, rates = columns.fastest_within(t_gen_s)
        assert found.tolist() == index
        assert rates.tolist() == pytest.approx(rate)
    assert columns.generation_times_s().tolist() == [10.0, 20.0, 60.0]


def test_workers_that_may_not_relay_have_no_uplink_and_regions_are_numbered() -> None:
    columns = columns_of(demand(), [worker(0, relays=False, region="b"), worker(1, region="a", pin="off"), worker(2)])
    assert columns.upload.tolist() == [0.0, 2e7, 2e7]
    assert columns.regions == ("a", "b")
    assert columns.region.tolist() == [1, 0, -1]
    assert columns.pin.tolist() == [0, -1, 0]


def test_too_many_egress_prices_are_rounded_down_to_levels() -> None:
    prices = np.linspace(0.0, 0.1, 100)
    columns = columns_of(
        demand(), [worker(number, egress_usd_per_gb=float(price)) for number, price in enumerate(prices)]
    )
    at_level = columns.level_usd_per_gb[columns.level]
    assert columns.level_usd_per_gb.size == PRICE_LEVELS_MAX
    assert (at_level <= columns.egress_usd_per_gb).all()
    assert (columns.egress_usd_per_gb - at_level).max() < 0.1 / 25


def test_copies_of_a_worker_are_not_pinned() -> None:
    columns = columns_of(demand(), [worker(0), worker(1, pin="on", usd_per_hour=3.0)]).with_copies(1, 2)
    assert len(columns) == 4
    assert columns.price.tolist() == [1.0, 3.0, 3.0, 3.0]
    assert columns.pin.tolist() == [0, 1, 0, 0]


@settings(deadline=None, max_examples=80)
@given(demands(), pools())
def test_totals_say_what_a_set_costs_and_whether_it_holds(wanted: Demand, workers: list[Worker]) -> None:
    if wanted.budget_s <= 20.0:
        return
    split = Split(20.0, wanted.budget_s - 20.0)
    programme = programme_of(wanted, columns_of(wanted, workers), split)
    if programme.rate_needed is None:
        return
    totals, chosen = totals_of(programme), programme.eligible
    sums = totals.of(chosen)[None, :]
    on = [
        (one, one.speeds[option // len(IN_TIME_SHARES)])
        for one, option, is_on in zip(workers, programme.option, chosen, strict=True)
        if is_on
    ]
    feasible = bool(chosen.any()) and programme.origin_feeds >= 1 and bool(totals.feasible(sums)[0])
    assert feasible == (bool(on) and holds(wanted, on, split.t_bcast_s))
    if feasible:
        usd = usd_per_hour(wanted, [one for one, _ in on], split.t_bcast_s)
        assert float(totals.usd_per_hour(sums)[0]) == pytest.approx(usd)
        egress = egress_of(programme, copies_sent(programme, chosen))
        prices = sum(one.usd_per_hour for one, _ in on)
        assert prices + egress.usd_per_hour == pytest.approx(usd)


def test_broken_rows_count_by_their_weights() -> None:
    workers = [worker(number, relays=False) for number in range(4)]
    programme = programme_of(demand(), columns_of(demand(), workers), Split(20.0, 30.0))
    totals = totals_of(programme)
    sums = totals.of(np.ones(4, np.bool_))[None, :]
    usd, rate, copies = (float(value[0]) for value in totals.judged(sums))
    assert (usd, rate) == (4.0, 1.0)
    assert copies == pytest.approx(4 - 5e7 / (1.06e9 / 30))
    assert totals.penalised(sums, Weights(2.0, 3.0))[0] == pytest.approx(usd + 2 * rate + 3 * copies)


def test_where_no_rate_is_enough_no_set_holds() -> None:
    """Workers that pause for longer than a step never keep up, however many there are."""
    pausing = demand(pauses_while_receiving=True, t_train_s=60.0)
    programme = programme_of(pausing, columns_of(demand(), [worker(number) for number in range(3)]), Split(20.0, 100.0))
    totals = totals_of(programme)
    assert not totals.feasible(totals.of(np.ones(3, np.bool_))[None, :])[0]


@given(demand=demands(), pool=pools(), first=st.floats(0, 1), last=st.floats(0, 1), pinned=st.integers(0, 8))
@settings(max_examples=25, deadline=None)
def test_two_prices_bound_a_programme_as_the_solver_does(
    demand: Demand, pool: list[Worker], first: float, last: float, pinned: int
) -> None:
    pool = [replace(one, pin="on" if place == pinned else "") for place, one in enumerate(pool)]
    columns = columns_of(demand, pool)
    times_s = times_of(demand, columns)
    if not times_s.size:
        return
    low, high = sorted(round(share * (times_s.size - 1)) for share in (first, last))
    programme = programme_over(demand, columns, times_s, low, high)
    by_solver, by_prices = relax(programme), priced(programme)
    assert (by_solver is None) == (by_prices is None)
    if by_solver is not None and by_prices is not None:
        assert by_prices.bound == pytest.approx(by_solver.bound, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_prices_of_a_large_pool_are_sifted_as_the_solver_does(seed: int) -> None:
    wanted, pool = bench_demand(1024), bench_pool(1000, seed)
    columns = columns_of(wanted, pool)
    times_s = times_of(wanted, columns)
    near = None
    for first, last in ((0, times_s.size - 1), (times_s.size // 2, times_s.size - 1), (800, 900)):
        programme = programme_over(wanted, columns, times_s, first, last)
        by_solver, near = relax(programme), priced(programme, near)
        assert by_solver is not None
        assert near is not None
        assert near.bound == pytest.approx(by_solver.bound, rel=1e-9)
        assert near.duals["rate", ""] == pytest.approx(by_solver.duals["rate", ""], rel=1e-6)


@pytest.mark.parametrize(("uplink", "found"), [(5e7, None), (6e7, Prices(1.0, 0.0))])
def test_no_prices_where_copies_are_missing_at_any_price(uplink: float, found: Prices | None) -> None:
    """Five workers make the rate and pass nothing on, and the origin sends four copies in time or five."""
    workers = [worker(number, upload_bytes_per_second=0.0) for number in range(10)]
    wanted = demand(learner_upload_bytes_per_second=uplink)
    programme = programme_of(wanted, columns_of(wanted, workers), Split(20.0, 100.0))
    assert best_prices(programme, np.arange(10)) == found
