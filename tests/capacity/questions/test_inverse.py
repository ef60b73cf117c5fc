from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from capacity.model.demand import Conduct, Demand, publish_seconds
from capacity.model.workers import Worker
from capacity.planner.planner import plan
from capacity.questions.inverse import best_knob, explain, largest_model, one_more_dollar, smallest_staleness
from capacity.questions.sensitivities import single_changes
from tests.capacity.planner.test_planner import demand, worker


def pool(count: int = 8, **fields: object) -> list[Worker]:
    return [worker(number, usd_per_hour=1.0 + number / 10, **fields) for number in range(count)]


def test_the_smallest_staleness_is_feasible_and_one_less_is_not() -> None:
    wanted = demand(update_bytes=1.2e9, learner_upload_bytes_per_second=2.2e7)
    made = smallest_staleness(wanted, pool())
    assert made is not None
    limit = made.demand.staleness_limit
    assert plan(replace(wanted, staleness_limit=limit), pool()).feasible
    assert not plan(replace(wanted, staleness_limit=limit - 1), pool()).feasible
    assert made.staleness_needed == limit


def test_no_staleness_is_enough_for_too_few_workers() -> None:
    assert smallest_staleness(demand(), pool(count=3)) is None


def test_the_largest_model_is_the_first_for_which_there_is_a_plan() -> None:
    sizes = {"large": 60e9, "middle": 1.5e9, "small": 5e8}

    def scenario(name: str) -> tuple[Demand, Sequence[Worker]]:
        return demand(update_bytes=sizes[name]), pool()

    found = largest_model(sizes, scenario)
    assert found is not None
    assert found[0] == "middle"
    assert found[1].feasible
    assert largest_model(["large"], scenario) is None


def test_a_dollar_buys_what_the_next_worker_makes() -> None:
    """Five of eight equal workers are on at 1.0 to 1.4 $/h; the next one costs 1.5."""
    made = plan(demand(), pool())
    bought = one_more_dollar(made, 1.5)
    assert bought is not None
    assert bought.usd_per_hour == pytest.approx(6.0)
    assert bought.rollouts_per_second == pytest.approx(1.0, rel=1e-4)
    assert bought.t_train_s == pytest.approx(50.0, rel=1e-4)
    assert one_more_dollar(plan(demand(), pool(count=2))) is None


def test_the_knob_that_saves_most_is_named() -> None:
    """Copies cost money, so half the bytes saves half of their cost."""
    wanted = demand(learner_egress_usd_per_gb=0.1, topology=replace(demand().topology, shape="star"))
    best = best_knob(wanted, pool())
    assert best is not None
    assert best.knob == "topology"
    assert best.saves_usd_per_hour > 0


def test_the_knob_that_makes_a_set_possible_is_named() -> None:
    wanted = demand(learner_upload_bytes_per_second=4e6, update_bytes=1e9)
    best = best_knob(wanted, pool())
    assert best is not None
    assert math.isinf(best.saves_usd_per_hour)
    assert math.isfinite(best.usd_per_hour)


def test_explanation_names_limits_and_the_first_worker_left_out() -> None:
    made = plan(demand(), pool())
    found = explain(made)
    assert found.binding == ("rate",)
    assert found.what.startswith("rate limits the plan: 5 of 8 workers for 6 $/h")
    assert found.first_left_out is not None
    assert found.first_left_out.worker.worker_id == "w5"
    assert found.last_taken is not None
    assert found.last_taken.worker.worker_id == "w4"
    assert found.shadow_prices[0].words.startswith("one more rollout/s costs 1.")
    knobs = {effect.knob for effect in found.changes}
    assert {"S", "kappa", "uplink", "topology", "deltas", "workers"} <= knobs


def test_an_infeasible_plan_is_explained_by_its_row() -> None:
    found = explain(plan(demand(), pool(count=2)))
    assert found.binding == ("rate",)
    assert "together make 2 rollouts/s" in found.what
    assert found.changes == ()


def test_a_change_of_the_uplink_changes_the_time_to_publish_too() -> None:
    upload = 1.2e7
    conduct = Conduct(t_publish_s=publish_seconds(1e9, upload))
    wanted = demand(learner_upload_bytes_per_second=upload, conduct=conduct)
    workers = [worker(number) for number in range(12)]
    assert not plan(wanted, workers).feasible
    effects = {(one.knob, one.change): one.usd_per_hour for one in single_changes(wanted, workers)}
    assert math.isfinite(effects["uplink", "doubled to 192 Mbit/s"])
    assert math.isinf(effects["uplink", "halved to 48 Mbit/s"])
