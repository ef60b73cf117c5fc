"""Test the decisions besides the planner's own set, and how measurements correct assumptions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.demand import Demand
from capacity.model.workers import Pin, Speed, Worker
from capacity.replan.corrections import Corrections
from capacity.replan.deciding import decide
from capacity.replan.events import Problem, ReplanSettings

DEMAND = Demand(  # two rollouts a second
    rollouts_per_step=100, t_train_s=50.0, staleness_limit=4, update_bytes=1e8, learner_upload_bytes_per_second=1e8
)


def worker(name: str, *, rate: float = 1.0, usd: float = 1.0, active: bool = True, pin: Pin = "") -> Worker:
    return Worker(
        worker_id=name,
        speeds=(Speed(8, rate, 10.0),),
        usd_per_hour=usd,
        upload_bytes_per_second=1e8,
        download_bytes_per_second=1e9,
        active=active,
        pin=pin,
    )


def problem(*workers: Worker, demand: Demand = DEMAND, **changes: object) -> Problem:
    made = Problem(number=1, trigger="test", demand=demand, workers=workers, settings=ReplanSettings())
    return replace(made, **changes)  # type: ignore[arg-type]


def on(made: Problem) -> set[str]:
    solved = decide(made)
    turned_off = {name for name, _ in solved.turn_off}
    before = {one.worker_id for one in made.workers if one.active}
    chosen = before - turned_off | {name for name, _ in solved.turn_on}
    assert (solved.on, solved.off) == (len(chosen), len(made.workers) - len(chosen))
    return chosen


def test_the_cheapest_set_with_a_reason_for_each() -> None:
    workers = [worker("a", usd=1.0), worker("b", usd=1.0), worker("c", usd=1.0), worker("d", usd=3.0)]
    solved = decide(problem(*workers))
    assert [name for name, _ in solved.turn_off] == ["d"]
    assert solved.turn_off[0][1].startswith("off: ")
    assert {name for name, reason in solved.reasons if reason.startswith("on: ")} == {"a", "b", "c"}
    assert solved.lp_bound_usd_per_hour <= solved.usd_per_hour == 3.0


def test_an_incumbent_is_left_only_for_one_that_is_cheaper_by_more_than_the_discount() -> None:
    incumbents = [worker(name) for name in "abc"]
    assert on(problem(*incumbents, worker("d", usd=0.9, active=False))) == {"a", "b", "c"}
    assert "d" in on(problem(*incumbents, worker("d", usd=0.5, active=False)))


def test_a_replacement_must_pay_for_its_start_within_an_hour() -> None:
    workers = [*(worker(name) for name in "abc"), worker("d", usd=0.8, active=False)]
    at_once, slow = (problem(*workers, settings=ReplanSettings(start_s=start_s)) for start_s in (0.0, 600.0))
    assert "d" in on(at_once)
    assert "d" not in on(slow)
    assert ReplanSettings(start_s=1e6).discount < 1.0


def test_what_costs_nothing_stays_on() -> None:
    free = [worker(f"f{number}", usd=0.0) for number in range(6)]
    assert on(problem(*free, worker("dear"))) == {one.worker_id for one in free}


def test_what_costs_nothing_is_off_where_it_holds_up_the_others() -> None:
    slow = replace(worker("slow", usd=0.0), download_bytes_per_second=1e5)
    solved = decide(problem(*[worker(f"f{number}", usd=0.0) for number in range(4)], slow))
    assert [name for name, _ in solved.turn_off] == ["slow"]
    assert solved.dark == ("slow",)


def test_one_that_rests_is_used_only_if_there_is_no_set_without_it() -> None:
    workers = [worker("a"), worker("b"), worker("c", usd=9.0, active=False), worker("rests", active=False)]
    assert on(problem(*workers, resting=("rests",))) == {"a", "b", "c"}
    assert on(problem(*workers[:2], workers[3], resting=("rests",))) == {"a", "b", "rests"}


def test_no_worker_is_started_for_the_second_half_of_the_headroom() -> None:
    demand = replace(DEMAND, headroom=1.1)
    workers = [worker("a", rate=1.07), worker("b", rate=1.07), worker("c", active=False)]
    assert on(problem(*workers, demand=demand)) == {"a", "b"}
    slower = [worker("a"), worker("b"), worker("c", active=False)]
    assert on(problem(*slower, demand=demand)) == {"a", "b", "c"}


def test_a_learner_that_would_idle_has_everybody() -> None:
    solved = decide(problem(worker("a"), worker("b", active=False), demand=replace(DEMAND, t_train_s=10.0)))
    assert [name for name, _ in solved.turn_on] == ["b"]
    assert solved.infeasible


def test_but_never_above_the_budget_nor_against_a_pin() -> None:
    demand = replace(DEMAND, t_train_s=10.0, usd_per_hour_max=2.5)
    workers = [worker("a"), worker("b"), worker("c", active=False), worker("d", usd=0.1, active=False, pin="off")]
    assert on(problem(*workers, demand=demand)) == {"a", "b"}


def test_where_s_is_too_small_half_as_many_again_are_on() -> None:
    demand = replace(DEMAND, staleness_limit=1)
    workers = [worker(f"w{number}") for number in range(8)]
    assert len(on(problem(*workers, demand=demand))) == 3


def test_where_versions_take_too_long_no_worker_is_added() -> None:
    demand = replace(DEMAND, update_bytes=1e12)
    assert on(problem(worker("a"), worker("b", active=False), demand=demand)) == {"a"}
    assert on(problem(worker("a", active=False), demand=demand)) == {"a"}


def test_those_that_are_off_receive_versions_where_that_is_cheap() -> None:
    workers = [worker("a"), worker("b"), worker("c"), worker("off", usd=2.0, active=False)]
    assert decide(problem(*workers)).dark == ()
    assert decide(problem(*workers, demand=replace(DEMAND, learner_egress_usd_per_gb=0.09))).dark == ("off",)


ASSUMED_DEMAND = Demand(
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
    assert Corrections().demand(ASSUMED_DEMAND) == ASSUMED_DEMAND
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
    assert low.with_rate(1.0, 10.0, workers_limit=False).rate == pytest.approx(
        0.525
    )  # it fades, because the slowdown may be over
    assert Corrections(rate=1.2).with_rate(1.0, 10.0, workers_limit=False).rate == pytest.approx(1.19)


def test_factors_are_bounded_and_a_rest_is_an_overhead() -> None:
    made = Corrections()
    for _ in range(60):
        made = made.with_rate(0.0, 10.0, workers_limit=True).with_t_bcast(0.5, 0.001).with_t_train(1000.0, 20.0)
    assert (made.rate, made.t_bcast, made.t_train) == pytest.approx((0.25, 4.0, 4.0), abs=0.01)
    assert made.overhead_s == pytest.approx(0.5 - 4.0 * 0.001, abs=0.01)
    corrected = made.demand(ASSUMED_DEMAND)
    assert corrected.t_load_s == made.overhead_s
    assert corrected.t_train_s == pytest.approx(80.0, rel=0.01)


def test_what_is_predicted_to_take_no_time_is_all_overhead() -> None:
    assert Corrections().with_t_bcast(1.0, 0.0).overhead_s == pytest.approx(0.3)


def test_busy_workers_that_a_learner_waits_for_make_less_than_it_needs() -> None:
    assert Corrections().with_too_little(8.0, 10.0).rate == pytest.approx(0.8)
    assert Corrections().with_too_little(8.0, 5.0).rate == 1.0  # as predicted
    assert Corrections().with_too_little(8.0, 0.0) == Corrections()
