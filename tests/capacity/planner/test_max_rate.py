from __future__ import annotations

import pytest

from capacity.planner.columns import columns_of
from capacity.planner.max_rate import farthest, reach_of
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from tests.capacity.planner.test_planner import demand, worker


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
    columns = columns_of([worker(number, **worker_fields) for number in range(8)])
    assert reach_of(programme_of(demand(**fields), columns, Split(20.0, 100.0))).stopped_by == stopped_by


def test_the_set_of_the_largest_rate_holds_the_relay_row() -> None:
    columns = columns_of([worker(n, upload_bytes_per_second=n * 3e6) for n in range(8)])
    reach = reach_of(programme_of(demand(learner_upload_bytes_per_second=2e7), columns, Split(20.0, 100.0)))
    taken = 8 * [0.0]
    for place in range(8):
        taken[place] = float(reach.chosen[place]) * (1 - place * 3e6 / 1.06e7)
    assert sum(taken) <= 2e7 / 1.06e7
    assert reach.rate == reach.chosen.sum()


def test_no_split_has_no_reach() -> None:
    assert farthest(demand(staleness_limit=1), columns_of([worker(0)]), 5) is None
