from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker
from capacity.planner.columns import columns_of
from capacity.planner.infeasible import unproven
from capacity.planner.linear import relax
from capacity.planner.planner import PlanOptions, plan, solution_of
from capacity.planner.plans import Infeasible, Split
from capacity.planner.programme import programme_of, programme_over
from capacity.planner.splits import split_at, times_of
from capacity.planner.totals import totals_of
from tests.capacity.planner import plan_checks
from tests.capacity.planner.plan_strategies import demands, numbers, pools

PATIENT = PlanOptions(time_limit_s=20.0)
SLOW = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def worker(number: int, **fields: object) -> Worker:
    values: dict[str, object] = {
        "worker_id": f"w{number}",
        "speeds": (Speed(8, 1.0, 20.0),),
        "usd_per_hour": 1.0,
        "upload_bytes_per_second": 2e7,
        "download_bytes_per_second": 1e8,
    }
    return Worker(**(values | fields))  # type: ignore[arg-type]


def demand(**fields: object) -> Demand:
    values: dict[str, object] = {
        "rollouts_per_step": 300,
        "t_train_s": 60.0,
        "staleness_limit": 4,
        "update_bytes": 1e9,
        "learner_upload_bytes_per_second": 5e7,
        "headroom": 1.0,
    }
    return Demand(**(values | fields))  # type: ignore[arg-type]


@SLOW
@given(demands(), pools(most=7), st.sampled_from([0.0, 0.0, 0.5]))
def test_a_small_pool_gets_the_best_of_all_sets(wanted: Demand, workers: list[Worker], share: float) -> None:
    wanted = replace(wanted, share_without_a_region=share)
    best = plan_checks.cheapest_usd_per_hour(wanted, workers)
    made = plan(wanted, workers, replace(PATIENT, remedies=False))
    assert made.feasible == (best is not None) or wanted.pauses_while_receiving
    if best is not None:
        slower = 0.0 if wanted.pauses_while_receiving else best  # shorter broadcasts than those tried may be cheaper
        assert slower * (1 - 1e-9) - 1e-9 <= made.usd_per_hour <= best * (1 + 1e-9) + 1e-9
    if made.feasible:
        plan_checks.check(made)
        assert made.integer_bound_usd_per_hour <= made.usd_per_hour * (1 + 1e-9)


@SLOW
@given(
    demands(),
    pools(most=12),
    st.sampled_from([0.0, 0.5, 0.8]),
    st.sampled_from([0.0, 2.33]),
    st.lists(st.sampled_from(["", "", "", "on", "off"]), min_size=12, max_size=12),
    st.sampled_from([0.0, 0.3]),
)
def test_every_row_holds_when_recomputed(
    wanted: Demand, workers: list[Worker], share: float, chance_z: float, pins: list[str], discount: float
) -> None:
    wanted = replace(wanted, share_without_a_region=share, chance_z=chance_z, region_correlation=0.59)
    pinned = [replace(one, pin=pin) for one, pin in zip(workers, pins, strict=False)]
    made = plan(wanted, pinned, PlanOptions(incumbent_discount=discount))
    if made.feasible:
        plan_checks.check(made)
        assert made.gap >= 0
    else:
        assert not made.chosen
        assert made.infeasible is not None
        assert made.infeasible.what


@SLOW
@given(demands(), pools(), st.sampled_from(["money", "staleness", "uplink"]), numbers(1.0, 10.0), numbers(5.0, 60.0))
def test_more_never_makes_the_bound_worse(
    wanted: Demand, workers: list[Worker], what: str, factor: float, t_gen_s: float
) -> None:
    """The split is fixed, because more S would leave more of the budget to the broadcast.

    Workers that pause would be given a broadcast that lasts longer, and with it less time to generate.
    """
    wanted = replace(wanted, pauses_while_receiving=False)
    more, columns = wanted, columns_of(wanted, workers)
    if what == "money":
        wanted, more = replace(wanted, usd_per_hour_max=1.0), replace(wanted, usd_per_hour_max=factor)
    elif what == "staleness":
        more = replace(wanted, staleness_limit=wanted.staleness_limit + math.ceil(factor))
    else:
        more = replace(wanted, learner_upload_bytes_per_second=wanted.learner_upload_bytes_per_second * factor)
    if wanted.budget_s <= t_gen_s:
        return
    before, after = (relax(programme_of(one, columns, split_at(one, t_gen_s))) for one in (wanted, more))
    if before is not None:
        assert after is not None
        assert after.bound <= before.bound * (1 + 1e-7) + 1e-7


@settings(SLOW, max_examples=30)
@given(demands(), pools(most=7), st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 2.33]))
def test_no_split_of_an_interval_is_below_the_bound_of_the_interval(
    wanted: Demand, workers: list[Worker], share: float, chance_z: float
) -> None:
    wanted, columns = replace(wanted, share_without_a_region=share, chance_z=chance_z), columns_of(wanted, workers)
    times = times_of(wanted, columns)
    if not times.size:
        return
    last = len(times) - 1
    for first in (0, last // 2):
        whole = relax(programme_over(wanted, columns, times, first, last))
        least = math.inf if whole is None else whole.bound
        for at in times[first:]:
            one = relax(programme_of(wanted, columns, split_at(wanted, float(at))))
            assert one is None or least <= one.bound * (1 + 1e-7) + 1e-7


@SLOW
@given(
    demands(), pools(most=6), st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 2.33]), st.sampled_from([0.0, 0.59])
)
def test_no_set_at_any_split_contradicts_a_bound_or_a_verdict(
    wanted: Demand, workers: list[Worker], share: float, chance_z: float, correlation: float
) -> None:
    wanted = replace(wanted, share_without_a_region=share, chance_z=chance_z, region_correlation=correlation)
    best = plan_checks.cheapest_usd_per_hour(wanted, workers)
    made = plan(wanted, workers, replace(PATIENT, remedies=False))
    if made.infeasible is not None:
        assert best is None or not made.infeasible.proven
    elif best is not None:
        assert max(made.lp_bound_usd_per_hour, made.integer_bound_usd_per_hour) <= best * (1 + 1e-6) + 1e-6


def test_the_split_of_the_best_set_is_found_among_many() -> None:
    """Only one of 2,000 times to generate lets a cheap worker take part: a grid over them would miss it."""
    slow = [worker(number, speeds=(Speed(1, 0.01, 20.0 + number / 100),), usd_per_hour=5.0) for number in range(2000)]
    cheap = [worker(2000 + number, speeds=(Speed(8, 1.0, 33.337),), usd_per_hour=0.1) for number in range(5)]
    narrow = [worker(2005 + number, download_bytes_per_second=6.4e6) for number in range(5)]
    made = plan(demand(), slow + cheap + narrow)
    assert made.split.t_gen_s == 33.337
    assert made.usd_per_hour == pytest.approx(0.5)
    assert made.lp_bound_usd_per_hour == pytest.approx(0.5)


def test_a_set_that_the_time_limit_kept_from_being_found_is_not_called_impossible() -> None:
    why = unproven(Infeasible("relay", "no", ()), 1.5)
    assert not why.proven
    assert "with parts of workers 1.5 $/h suffice" in why.what
    over = unproven(Infeasible("budget", "the cheapest set costs 5 $/h; the budget is 3 $/h", ()), 2.5)
    assert not over.proven
    assert over.what.endswith("is not proven, the bound is 2.5 $/h")


def test_workers_that_pause_may_end_a_broadcast_before_its_time_is_up() -> None:
    """The whole budget of 160 s for a broadcast would leave workers that pause no time of the 60 s to generate."""
    made = plan(demand(pauses_while_receiving=True, update_bytes=2e8), [worker(number) for number in range(8)])
    plan_checks.check(made)
    assert made.feasible
    assert made.split.t_bcast_s < 60.0


def test_twelve_workers_equal_brute_force() -> None:
    for seed in range(3):
        rng = random.Random(seed)
        workers = [
            worker(
                number,
                speeds=(Speed(4, rng.uniform(0.2, 1.0), 15.0), Speed(16, rng.uniform(1.0, 2.0), 40.0)),
                usd_per_hour=rng.uniform(0.2, 2.0),
                upload_bytes_per_second=rng.lognormvariate(15.5, 1.0),
                egress_usd_per_gb=rng.choice([0.0, 0.01]),
            )
            for number in range(12)
        ]
        wanted = demand(rollouts_per_step=400)
        made = plan(wanted, workers, PATIENT)
        best = plan_checks.cheapest_usd_per_hour(wanted, workers)
        assert best is not None
        assert math.isclose(made.usd_per_hour, best, rel_tol=1e-9)


def test_an_incumbent_stays_unless_another_is_cheaper_by_more_than_the_discount() -> None:
    old = [worker(number, usd_per_hour=1.1, active=True) for number in range(5)]
    new = [worker(number + 5, usd_per_hour=1.0) for number in range(5)]
    moved = plan(demand(), old + new)
    kept = plan(demand(), old + new, PlanOptions(incumbent_discount=0.2))
    assert {one.worker.worker_id for one in moved.chosen} == {f"w{number}" for number in range(5, 10)}
    assert {one.worker.worker_id for one in kept.chosen} == {f"w{number}" for number in range(5)}
    assert kept.usd_per_hour == pytest.approx(5.5)
    assert kept.lp_bound_usd_per_hour == pytest.approx(4.4)
    assert kept.gap == pytest.approx(0.0, abs=1e-9)


def test_a_budget_is_kept_at_full_prices_even_if_incumbents_must_go() -> None:
    old = [worker(number, usd_per_hour=1.1, active=True) for number in range(5)]
    new = [worker(number + 5, usd_per_hour=1.0) for number in range(5)]
    made = plan(demand(usd_per_hour_max=5.2), old + new, PlanOptions(incumbent_discount=0.2))
    assert made.feasible
    assert made.usd_per_hour <= 5.2
    refused = plan(demand(usd_per_hour_max=4.9), old + new, PlanOptions(incumbent_discount=0.2))
    assert refused.infeasible is not None
    assert refused.infeasible.remedies[0] == "budget: 4.9 -> 5 $/h"


def test_pins_are_obeyed() -> None:
    workers = [worker(number, pin="off" if number == 0 else "") for number in range(6)]
    workers.append(worker(6, usd_per_hour=9.0, pin="on"))
    made = plan(demand(), workers)
    on = {one.worker.worker_id for one in made.chosen}
    assert "w6" in on
    assert "w0" not in on
    assert len(on) == 5
    reasons = {one.worker.worker_id: one.reason for one in made.candidates}
    assert reasons["w0"] == "off: pinned by the operator"
    assert reasons["w6"].startswith("on: pinned by the operator")


def test_a_pinned_worker_that_is_too_slow_is_named() -> None:
    slow = worker(6, speeds=(Speed(1, 1.0, 500.0),), pin="on")
    made = plan(demand(), [worker(number) for number in range(6)] + [slow])
    assert made.infeasible is not None
    assert made.infeasible.binding == "pins"


def test_relays_with_paid_egress_are_left_out_where_others_relay_free() -> None:
    free = [worker(number) for number in range(5)]
    paid = [worker(number + 5, usd_per_hour=0.99, egress_usd_per_gb=0.09) for number in range(5)]
    wanted = demand(learner_upload_bytes_per_second=1.8e7)
    made = plan(wanted, free + paid)
    plan_checks.check(made)
    assert made.egress_usd_per_hour < 0.05
    starved = plan(wanted, [replace(one, relays=False) for one in free] + paid)
    plan_checks.check(starved)
    assert starved.egress_usd_per_hour > made.egress_usd_per_hour


def test_every_worker_may_have_its_own_price_of_egress() -> None:
    """With more prices than levels the bound stays below the cost, which uses the exact prices."""
    workers = [
        worker(number, egress_usd_per_gb=0.0005 * (number + 1), upload_bytes_per_second=1.5e7 + 1e5 * number)
        for number in range(100)
    ]
    wanted = demand(
        rollouts_per_step=2400,
        update_bytes=3.7e8,
        learner_upload_bytes_per_second=1e7,
        learner_egress_usd_per_gb=0.01,
    )
    made = plan(wanted, workers)
    plan_checks.check(made)
    assert made.egress_usd_per_hour > 0
    assert 0 <= made.gap < 0.05


def test_small_pools_without_a_version_to_send() -> None:
    made = plan(demand(update_bytes=0.0), [worker(number) for number in range(6)])
    assert made.feasible
    assert len(made.chosen) == 5
    assert made.t_bcast_s == 0.0


def test_two_workers_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="same worker_id"):
        plan(demand(), [worker(1), worker(1)])


def test_a_region_that_is_lost_leaves_enough() -> None:
    workers = [worker(number, region="a", usd_per_hour=0.5) for number in range(8)]
    workers += [worker(number + 8, region="b") for number in range(8)]
    made = plan(demand(share_without_a_region=0.8), workers)
    plan_checks.check(made)
    assert sum(one.worker.region == "b" for one in made.chosen) == 4
    assert {row.subject for row in made.rows if row.name == "region"} == {"a", "b"}


def test_the_chance_row_buys_a_margin() -> None:
    workers = [worker(number, preemptions_per_hour=1.0, lost_per_preemption_s=360.0) for number in range(30)]
    bare, sure = plan(demand(), workers), plan(demand(chance_z=2.33), workers)
    plan_checks.check(sure)
    assert len(sure.chosen) > len(bare.chosen)


def test_workers_of_one_region_are_not_relied_on_together_where_their_losses_are_correlated() -> None:
    often = {"preemptions_per_hour": 2.0, "lost_per_preemption_s": 360.0}
    workers = [
        worker(number, region="ab"[number // 12], usd_per_hour=(0.9, 1.0)[number // 12], **often)
        for number in range(24)
    ]
    alone = plan(demand(chance_z=2.33), workers)
    together = plan(demand(chance_z=2.33, region_correlation=0.59), workers)
    plan_checks.check(together)
    regions = [[one.worker.region for one in made.chosen] for made in (alone, together)]
    assert regions[0].count("b") < regions[1].count("b")
    assert together.usd_per_hour > alone.usd_per_hour


def test_a_set_without_one_that_is_pinned_on_is_none() -> None:
    workers = [worker(number) for number in range(9)] + [worker(9, usd_per_hour=9.0, pin="on")]
    relaxation = relax(programme_of(demand(), columns_of(demand(), workers), Split(20.0, 100.0)))
    assert relaxation is not None
    totals = totals_of(relaxation.programme)
    whole = np.ones(len(workers), np.bool_)
    assert solution_of(relaxation, totals, whole) is not None
    without = whole.copy()
    without[9] = False
    assert totals.feasible(totals.of(without)[None, :])[0]
    assert solution_of(relaxation, totals, without) is None
