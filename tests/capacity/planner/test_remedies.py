"""Test infeasible demands: the reason, the highest possible rate, and the remedies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.demand import Conduct, publish_seconds
from capacity.model.topologies import Topology
from capacity.model.workers import Speed
from capacity.planner.columns import columns_of
from capacity.planner.max_rate import farthest, reach_of
from capacity.planner.planner import PlanOptions, plan, remedies, searched
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from capacity.planner.remedies import smallest_factor, smallest_whole
from capacity.planner.written_plan import rate_text
from tests.capacity.planner.test_planner import demand, worker

CASES = {
    "learner_uplink": (demand(learner_upload_bytes_per_second=4e6), {}, "the learner's uplink of 32 Mbit/s is below"),
    "relay": (
        demand(update_bytes=1.5e9, learner_upload_bytes_per_second=3e7),
        {"relays": False},
        "rollouts/s at most get 1500 MB within",
    ),
    "downlink": (demand(update_bytes=8e9, learner_upload_bytes_per_second=1e9), {"download_bytes_per_second": 4e7}, ""),
    "staleness": (demand(staleness_limit=1), {}, "the fastest worker's rollout takes 20 s"),
    "rate": (
        demand(rollouts_per_step=1000),
        {},
        "make 12 rollouts/s that are young enough for S; 16.67 rollouts/s are needed",
    ),
    "budget": (demand(usd_per_hour_max=3.0), {}, "the cheapest set costs 5 $/h; the budget is 3 $/h"),
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
    for remedy in remedies(wanted, columns_of(wanted, workers), PlanOptions()):
        assert searched(remedy.demand, remedy.columns, PlanOptions()).best is not None


def test_each_change_is_the_smallest() -> None:
    wanted = demand(staleness_limit=1)
    workers = [worker(number) for number in range(12)]
    found = {remedy.knob: remedy for remedy in remedies(wanted, columns_of(demand(), workers), PlanOptions())}
    assert found["S"].demand.staleness_limit == 2
    less = replace(wanted, staleness_limit=found["S"].demand.staleness_limit - 1)
    assert not plan(less, workers).feasible


def test_publishing_that_takes_longer_than_s_allows_is_named_and_follows_the_link() -> None:
    upload = 1e7
    conduct = Conduct(t_publish_s=publish_seconds(1.5e9, upload))
    wanted = demand(update_bytes=1.5e9, learner_upload_bytes_per_second=upload, conduct=conduct)
    workers = [worker(number) for number in range(12)]
    made = plan(wanted, workers)
    assert made.infeasible is not None
    assert made.infeasible.what.startswith(
        "publishing takes too long for S: 1500 MB take 300.1 s over an uplink of 80 Mbit/s"
    )
    assert "leaves 0 s" not in made.infeasible.what
    found = {remedy.knob: remedy for remedy in remedies(wanted, columns_of(wanted, workers), PlanOptions())}
    for knob in ("uplink", "deltas"):
        changed = found[knob].demand
        assert changed.conduct.t_publish_s == publish_seconds(
            changed.update_bytes, changed.learner_upload_bytes_per_second
        )
        assert plan(changed, workers).feasible


def test_no_rollout_is_young_enough_where_s_is_not_above_kappa() -> None:
    made = plan(demand(staleness_limit=1), [worker(number) for number in range(12)])
    assert made.infeasible is not None
    assert made.infeasible.what.endswith("no rollout is young enough where S = 1 is not above kappa = 1")


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


SPEED = Speed(1, 1.0, 20.0)

#: One worker besides five that suffice, and its reason.
REASONS = {
    "slow": (
        worker(9, speeds=(Speed(1, 1.0, 204.0),), usd_per_hour=0.18),
        "off: 3.1 learner steps too slow, for 0.18 $/h (a rollout takes 204 s; 20 s fit)",
    ),
    "unknown": (worker(9, speeds=(), usd_per_hour=0.2), "off: its speed is not known, for 0.2 $/h"),
    "narrow": (
        worker(9, download_bytes_per_second=1e6),
        "off: its downlink of 8 Mbit/s is below the 141 Mbit/s that a version within 60 s needs",
    ),
    "gone": (
        worker(9, preemptions_per_hour=60.0, lost_per_preemption_s=60.0),
        "off: preemptions leave none of its work, for 1 $/h",
    ),
    "dear": (
        worker(9, usd_per_hour=1.18),
        "off: 1 rollouts/s for 1.18 $/h: 0.1800 $/h more than its value",
    ),
    "kept off": (worker(9, pin="off"), "off: pinned by the operator"),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_worker_that_is_off_has_a_reason(case: str) -> None:
    other, words = REASONS[case]
    made = plan(demand(headroom=0.95), [worker(number) for number in range(5)] + [other])
    assert {one.worker.worker_id: one.reason for one in made.candidates}["w9"] == words


def test_an_equal_worker_that_is_not_needed_has_that_reason() -> None:
    made = plan(demand(headroom=0.95), [worker(number) for number in range(6)])
    off = [one.reason for one in made.candidates if not one.chosen]
    assert len(off) == 1
    assert off[0].endswith("as good as the last one that is on, but not needed")


@pytest.mark.parametrize(
    ("per_second", "text"),
    [
        (0.0393, "0.0393 rollouts/s"),
        (786.4, "786 rollouts/s"),
        (999.7, "1,000 rollouts/s"),
        (5034.0, "5,034 rollouts/s"),
    ],
)
def test_high_rates_have_no_exponent(per_second: float, text: str) -> None:
    assert rate_text(per_second) == text


def test_reasons_of_workers_that_are_on_name_their_value() -> None:
    workers = [worker(number, usd_per_hour=1.0 + number / 10) for number in range(6)]
    made = plan(demand(headroom=0.95), workers)
    reasons = [one.reason for one in made.chosen]
    assert reasons[0].startswith("on: 1 rollouts/s for 1 $/h")
    assert "0.4000 $/h less than its value" in reasons[0]
    assert reasons[4].endswith("the last one needed")


@pytest.mark.parametrize(
    ("fields", "worker_fields", "stopped_by"),
    [
        ({}, {}, None),
        ({"rollouts_per_step": 3000}, {}, "rate"),
        ({}, {"download_bytes_per_second": 1e6}, "downlink"),
        ({"learner_upload_bytes_per_second": 1e6}, {}, "learner_uplink"),
        ({"learner_upload_bytes_per_second": 2e7}, {"relays": False}, "relay"),
    ],
)
def test_what_stops_the_rate(
    fields: dict[str, object], worker_fields: dict[str, object], stopped_by: str | None
) -> None:
    columns = columns_of(demand(), [worker(number, **worker_fields) for number in range(8)])
    assert reach_of(programme_of(demand(**fields), columns, Split(20.0, 100.0))).stopped_by == stopped_by


def test_the_set_of_the_largest_rate_holds_the_relay_row() -> None:
    columns = columns_of(demand(), [worker(n, upload_bytes_per_second=n * 3e6) for n in range(8)])
    reach = reach_of(programme_of(demand(learner_upload_bytes_per_second=2e7), columns, Split(20.0, 100.0)))
    taken = 8 * [0.0]
    for place in range(8):
        taken[place] = float(reach.chosen[place]) * (1 - place * 3e6 / 1.06e7)
    assert sum(taken) <= 2e7 / 1.06e7
    assert reach.rate == reach.chosen.sum()


def test_no_split_has_no_reach() -> None:
    assert farthest(demand(staleness_limit=1), columns_of(demand(), [worker(0)]), 5) is None
