from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.topologies import Topology
from capacity.planner.columns import columns_of
from capacity.planner.planner import PlanOptions, best_of, plan, relaxed_splits, remedies
from capacity.planner.remedies import smallest_factor, smallest_whole
from tests.capacity.planner.test_planner import demand, worker

CASES = {
    "learner_uplink": (demand(learner_upload_bytes_per_second=4e6), {}, "the learner's uplink of 4 MB/s is below"),
    "relay": (
        demand(update_bytes=4e9, learner_upload_bytes_per_second=3e7),
        {"relays": False},
        "rollouts/s at most get 4000 MB within",
    ),
    "downlink": (demand(update_bytes=8e9, learner_upload_bytes_per_second=1e9), {"download_bytes_per_second": 4e7}, ""),
    "staleness": (demand(staleness_limit=1), {}, "the fastest worker's rollout takes 20 s"),
    "rate": (
        demand(rollouts_per_step=1000),
        {},
        "make 12 rollouts/s that are young enough for S; 16.67 rollouts/s are needed",
    ),
    "budget": (demand(usd_per_hour_max=3.0), {}, "the cheapest set costs 5 $/h, 3 $/h are allowed"),
    "region": (demand(share_without_a_region=0.5), {"region": "a"}, "when any one region is lost"),
}


@pytest.mark.parametrize("row", CASES)
def test_the_row_that_cannot_be_met_is_named_and_remedies_help(row: str) -> None:
    wanted, fields, words = CASES[row]
    workers = [worker(number, **fields) for number in range(12)]
    made = plan(wanted, workers)
    assert made.infeasible is not None
    assert made.infeasible.binding == row
    assert words in made.infeasible.what
    assert not made.chosen
    if row not in ("region",):
        assert made.infeasible.remedies
    for remedy in remedies(wanted, columns_of(workers), PlanOptions()):
        assert best_of(relaxed_splits(remedy.demand, remedy.columns, PlanOptions()), PlanOptions()) is not None


def test_each_change_is_the_smallest() -> None:
    wanted = demand(staleness_limit=1)
    workers = [worker(number) for number in range(12)]
    found = {remedy.knob: remedy for remedy in remedies(wanted, columns_of(workers), PlanOptions())}
    assert found["S"].demand.staleness_limit == 2
    less = replace(wanted, staleness_limit=found["S"].demand.staleness_limit - 1)
    assert not plan(less, workers).feasible


def test_budget_is_the_first_remedy_of_a_budget() -> None:
    made = plan(demand(usd_per_hour_max=3.0), [worker(number) for number in range(12)])
    assert made.infeasible is not None
    assert made.infeasible.remedies[0] == "budget: 3 -> 5 $/h"


def test_more_workers_are_counted() -> None:
    made = plan(demand(rollouts_per_step=1000), [worker(number) for number in range(12)])
    assert made.infeasible is not None
    assert any(remedy.startswith("workers: 5 more like w") for remedy in made.infeasible.remedies)


def test_another_shape_helps_where_one_source_is_too_slow() -> None:
    wanted = demand(update_bytes=4e9, learner_upload_bytes_per_second=8e7, topology=Topology("star"))
    made = plan(wanted, [worker(number, upload_bytes_per_second=9e7) for number in range(12)])
    assert made.infeasible is not None
    assert made.infeasible.remedies[0] == "topology: star -> stripes=8"


def test_the_search_for_the_smallest() -> None:
    for answer in (1, 2, 3, 17, 100):
        assert smallest_whole(lambda number, answer=answer: number >= answer, 100) == answer  # type: ignore[misc]
    assert smallest_whole(lambda number: number > 100, 100) is None
    found = smallest_factor(lambda factor: factor >= 3.0)
    assert found is not None
    assert 3.0 <= found <= 3.1
    assert smallest_factor(lambda factor: False) is None
