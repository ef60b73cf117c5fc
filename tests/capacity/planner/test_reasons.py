from __future__ import annotations

import pytest

from capacity.model.workers import Speed
from capacity.planner.planner import plan
from tests.capacity.planner.test_planner import demand, worker

SPEED = Speed(1, 1.0, 20.0)
#: One worker beside five that are enough, and what is said of it.
CASES = {
    "slow": (
        worker(9, speeds=(Speed(1, 1.0, 204.0),), usd_per_hour=0.18),
        "off: 3.1 versions slower for 0.18 $/h (a rollout takes 204 s, 20 s fit)",
    ),
    "unknown": (worker(9, speeds=(), usd_per_hour=0.2), "off: no speed of it is known, for 0.2 $/h"),
    "narrow": (
        worker(9, download_bytes_per_second=1e6),
        "off: its downlink of 1 MB/s is below the 6.62 MB/s that a version within 160 s needs",
    ),
    "gone": (
        worker(9, preemptions_per_hour=60.0, lost_per_preemption_s=60.0),
        "off: preemptions leave nothing of its work, for 1 $/h",
    ),
    "dear": (
        worker(9, usd_per_hour=1.18),
        "off: 1 rollouts/s for 1.18 $/h: 0.1800 $/h more than what it would add is worth",
    ),
    "kept off": (worker(9, pin="off"), "off: the operator keeps it off"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_worker_that_is_off_is_told_why(case: str) -> None:
    other, words = CASES[case]
    made = plan(demand(headroom=0.95), [worker(number) for number in range(5)] + [other])
    assert {one.worker.worker_id: one.reason for one in made.candidates}["w9"] == words


def test_one_of_equals_is_told_that_it_is_not_needed() -> None:
    made = plan(demand(headroom=0.95), [worker(number) for number in range(6)])
    off = [one.reason for one in made.candidates if not one.chosen]
    assert len(off) == 1
    assert off[0].endswith("as good as the last that is on, and not needed any more")


def test_workers_that_are_on_are_told_what_they_are_worth() -> None:
    workers = [worker(number, usd_per_hour=1.0 + number / 10) for number in range(6)]
    made = plan(demand(headroom=0.95), workers)
    reasons = [one.reason for one in made.chosen]
    assert reasons[0].startswith("on: 1 rollouts/s for 1 $/h")
    assert "0.4000 $/h less than what it adds is worth" in reasons[0]
    assert reasons[4].endswith("the last to be needed")
