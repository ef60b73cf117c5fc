"""Test files of events, and a run planned again at each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from capacity.model.demand import Conduct, Demand
from capacity.model.workers import Speed, Worker
from capacity.replan.event_files import pool_events, read_events
from capacity.replan.events import DemandSeen, Problem, ReplanSettings, Solved, WorkerGone, WorkerSeen
from capacity.replan.replanning import Replanner
from capacity.replan.replaying import PoolEvent, Replay
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


def test_a_replanner_gets_the_whole_plan_then_the_lines(tmp_path: Path) -> None:
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
def test_a_line_that_is_no_event_is_reported_with_its_number(tmp_path: Path, line: str) -> None:
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


DEMAND = Demand(
    rollouts_per_step=100, t_train_s=50.0, staleness_limit=4, update_bytes=1e6, learner_upload_bytes_per_second=1e8
)

SETTINGS = ReplanSettings(gather_s=0.0, dwell_s=0.0, interval_s=1e9)


def seen(name: str, usd: float = 2.0) -> WorkerSeen:
    worker = Worker(
        worker_id=name,
        speeds=(Speed(8, 1.0, 10.0),),
        usd_per_hour=usd,
        upload_bytes_per_second=1e8,
        download_bytes_per_second=1e8,
    )
    return WorkerSeen(worker)


def all_on(problem: Problem) -> Solved:
    off = tuple((one.worker_id, "on: all are") for one in problem.workers if not one.active)
    return Solved(number=problem.number, turn_on=off)


def test_starts_dollars_and_useful_time() -> None:
    replay = Replay(Replanner(SETTINGS), start_s=600.0, solve=all_on)
    events: list[tuple[float, PoolEvent]] = [
        (0.0, DemandSeen(DEMAND)),
        (0.0, seen("a")),
        (0.0, seen("b")),
        (3600.0, WorkerGone("b", "preempted")),
    ]
    done = replay.run(iter(events), 7200.0)
    assert (done.seconds, done.starts, done.starts_per_h) == (7200.0, 2, 1.0)
    assert done.usd == 2.0 * 1.0 + 2.0 * 2.0
    assert done.useful_s == 3000.0 + 3600.0 / 2.0  # both after they have started, then one of them
    assert [(one.at_s, one.worker_id, one.on) for one in done.switches] == [(0.0, "a", True), (0.0, "b", True)]


def test_a_worker_that_joins_first_receives_the_base() -> None:
    replay = Replay(Replanner(SETTINGS), start_s=600.0, solve=all_on)
    demand = replace(DEMAND, join_bytes=16e9)  # 160 s over the worker's downlink
    done = replay.run(iter([(0.0, DemandSeen(demand)), (0.0, seen("a")), (0.0, seen("b"))]), 3600.0)
    assert done.useful_s == 3600.0 - 760.0


def test_events_after_the_end_are_left_out() -> None:
    events: list[tuple[float, PoolEvent]] = [(0.0, DemandSeen(DEMAND)), (9.0, seen("a"))]
    done = Replay(Replanner(SETTINGS), start_s=0.0, solve=all_on).run(iter(events), 5.0)
    assert (done.seconds, done.starts) == (5.0, 0)


def test_memory_starts_fewer_where_prices_swing() -> None:
    """One of two workers is needed, and they alternate in being slightly cheaper."""
    demand = Demand(
        rollouts_per_step=40, t_train_s=50.0, staleness_limit=4, update_bytes=1e6, learner_upload_bytes_per_second=1e8
    )
    events: list[tuple[float, PoolEvent]] = [(0.0, DemandSeen(demand)), (0.0, seen("a", 2.0)), (0.0, seen("b", 2.1))]
    events += [(600.0 * turn, seen("a", 2.0 + 0.2 * (turn % 2))) for turn in range(1, 12)]
    forgetful = ReplanSettings(
        incumbent_discount=0.0, dwell_s=0.0, headroom_kept=1.0, price_change=0.0, speed_change=0.0
    )
    counts = [
        Replay(Replanner(settings), start_s=60.0).run(iter(events), 7200.0).starts
        for settings in (ReplanSettings(), forgetful)
    ]
    assert counts == [1, 12]


def test_the_learner_is_paid_while_it_waits_and_lives_on_what_was_made_ahead() -> None:
    demand = replace(
        DEMAND, learner_usd_per_hour=10.0, storage_usd_per_hour=2.0, conduct=Conduct(lead_margin_steps=0.5)
    )
    events: list[tuple[float, PoolEvent]] = [(0.0, DemandSeen(demand))]
    events += [(0.0, seen(name)) for name in "abc"]  # 1.5 times what is needed
    events += [(3600.0, WorkerGone(name, "preempted")) for name in "abc"]
    done = Replay(Replanner(SETTINGS), start_s=600.0, solve=all_on).run(iter(events), 7200.0)
    assert done.fixed_usd == pytest.approx(24.0)
    assert done.useful_s == pytest.approx(3000.0 + 0.5 * demand.t_train_s)
    assert done.usd_per_useful_h == pytest.approx((24.0 + 6.0) * 3600.0 / done.useful_s)


def test_a_worker_s_true_rate_counts_where_its_measured_one_is_not_exact() -> None:
    events: list[tuple[float, PoolEvent]] = [(0.0, DemandSeen(DEMAND)), (0.0, seen("a"))]
    replay = Replay(Replanner(SETTINGS), start_s=0.0, solve=all_on, rate_of=lambda worker: 0.5)
    assert replay.run(iter(events), 100.0).utilisation == pytest.approx(0.25)
