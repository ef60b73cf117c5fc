from __future__ import annotations

from pathlib import Path

import pytest

from capacity.replan.event_files import pool_events, read_events
from capacity.replan.events import DemandSeen, WorkerGone, WorkerSeen
from rollcast.runtime.errors import PlanFileError
from tests.capacity.sample_plan import SPEEDS, sample_demand, sample_worker

LINES = """{"at_s": 60, "kind": "gone", "worker_id": "w-1", "reason": "preempted"}
{"at_s": 300, "kind": "back", "worker_id": "w-1"}

{"at_s": 400, "kind": "price", "worker_id": "w-0", "usd_per_hour": 0.9}
{"at_s": 500, "kind": "speed", "worker_id": "w-0", "factor": 0.5}
{"at_s": 600, "kind": "demand", "staleness_limit": 3}
"""


def written(path: Path, text: str) -> Path:
    file = path / "trace.jsonl"
    file.write_text(text)
    return file


def test_a_replanner_is_told_everything_known_then_the_lines(tmp_path: Path) -> None:
    workers = [sample_worker(0, 0.4), sample_worker(1, 0.5, active=True)]
    events = list(pool_events(sample_demand(), workers, read_events(written(tmp_path, LINES)), "trace"))
    assert [(at_s, type(event)) for at_s, event in events[:3]] == [
        (0.0, DemandSeen),
        (0.0, WorkerSeen),
        (0.0, WorkerSeen),
    ]
    gone, back, price, speed, asked = [event for _, event in events[3:]]
    assert gone == WorkerGone("w-1", "preempted")
    assert isinstance(back, WorkerSeen)
    assert not back.worker.active
    assert isinstance(price, WorkerSeen)
    assert price.worker.usd_per_hour == 0.9
    assert isinstance(speed, WorkerSeen)
    assert speed.worker.usd_per_hour == 0.9
    assert speed.worker.speeds[0].rollouts_per_second == SPEEDS[0].rollouts_per_second / 2
    assert speed.worker.speeds[0].t_gen_p90_s == SPEEDS[0].t_gen_p90_s * 2
    assert isinstance(asked, DemandSeen)
    assert asked.demand.staleness_limit == 3


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"at_s": 1}',
        '{"at_s": 1, "kind": "gone"}',
        '{"at_s": 1, "kind": "rises", "worker_id": "a"}',
        '{"at_s": -1, "kind": "back", "worker_id": "a"}',
        '{"at_s": 1, "kind": "speed", "worker_id": "a", "factor": 0}',
        '{"at_s": 1, "kind": "price", "worker_id": "a", "usd_per_hour": -1}',
        '{"at_s": 1, "kind": "back", "worker_id": "a", "extra": 1}',
    ],
)
def test_a_line_that_is_no_event_is_told_with_its_number(tmp_path: Path, line: str) -> None:
    good = '{"at_s": 0, "kind": "back", "worker_id": "a"}\n'
    with pytest.raises(PlanFileError, match="line 2"):
        read_events(written(tmp_path, good + line))


def test_time_does_not_go_back_and_names_are_known(tmp_path: Path) -> None:
    back = '{"at_s": 5, "kind": "back", "worker_id": "a"}\n{"at_s": 4, "kind": "back", "worker_id": "a"}\n'
    with pytest.raises(PlanFileError, match="at_s"):
        read_events(written(tmp_path, back))
    with pytest.raises(PlanFileError, match="cannot read"):
        read_events(tmp_path / "missing.jsonl")
    lines = read_events(written(tmp_path, '{"at_s": 5, "kind": "back", "worker_id": "a"}'))
    with pytest.raises(PlanFileError, match="'a'"):
        list(pool_events(sample_demand(), [], lines, "trace"))
