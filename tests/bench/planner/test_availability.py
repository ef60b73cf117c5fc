"""Test the benchmarks of changing fleets: workers switched on and off, machines that come and go, re-planning."""

from __future__ import annotations

from argparse import Namespace
from random import Random

import pytest

from bench.planner import replan
from bench.planner.activation import DWELL_S, STEP_S, Step, Switch, _simulated, judged
from bench.planner.availability import Pool, Prices, Zone, drawn, recorded, walk
from capacity.replan.events import WorkerGone, WorkerSeen

ZONES = [Zone(f"z{number}", f"r{number // 2}", 1.0, 1.0, 0.5) for number in range(4)]


def test_a_recorded_number_of_machines_is_followed() -> None:
    here: set[str] = set()
    counts = [(0.0, 2), (10.0, 5), (20.0, 1), (30.0, 3)]
    sizes = {}
    for at_s, name, _, comes in recorded(counts, ZONES, Random(0)):
        (here.add if comes else here.remove)(name)
        sizes[at_s] = len(here)
    assert sizes == dict(counts)


def test_sampled_machines_leave_at_about_their_rate_and_come_back() -> None:
    changes = list(drawn(ZONES, 40, 24 * 3600.0, Random(1)))
    assert [at_s for at_s, *_ in changes] == sorted(at_s for at_s, *_ in changes)
    gone = sum(not comes for *_, comes in changes)
    assert 0.25 * 40 * 24 * 0.5 < gone < 1.5 * 40 * 24 * 0.5
    assert sum(comes for *_, comes in changes) > 0.8 * gone


def test_prices_walk_around_their_mean() -> None:
    factors = walk(Random(2), Prices(), 3000 * 3600.0)
    assert abs(sum(factors) / len(factors) - 1.0) < 0.05


def test_a_pool_reports_prices_each_period_and_only_of_present_machines() -> None:
    prices = Prices(every_s=10.0)
    pool = Pool(ZONES, prices, 100.0, Random(3), 60.0)
    changes = iter([(0.0, "a", ZONES[0], True), (25.0, "b", ZONES[1], True), (26.0, "a", ZONES[0], False)])
    told = [(at_s, type(event)) for at_s, event in pool.follow(changes)]
    assert told == [
        (0.0, WorkerSeen),
        (10.0, WorkerSeen),
        (20.0, WorkerSeen),
        (25.0, WorkerSeen),
        (26.0, WorkerGone),
    ]


def test_settling_counts_from_the_event_or_from_the_end_of_the_dwell() -> None:
    steps = [Step(100.0 + STEP_S * number, STEP_S, 0.9 * STEP_S) for number in range(1, 20)]
    early = judged([Switch(10.0, "a", True), Switch(100.0 + STEP_S, "b", True)], [100.0], steps)
    assert early["settle_steps"] == 1.0
    assert early["utilisation_after"] == pytest.approx(0.9)
    dwelling = judged([Switch(98.0, "a", True), Switch(98.0 + DWELL_S + 1.0, "a", False)], [100.0], steps)
    assert dwelling["settle_steps"] == pytest.approx(1.0 / STEP_S)


def test_a_switch_taken_back_after_one_event_is_a_flip() -> None:
    switches = [Switch(1.0, "a", False), Switch(11.0, "a", True), Switch(12.0, "a", False), Switch(31.0, "a", True)]
    assert judged(switches, [10.0, 30.0], [])["flips"] == 1


@pytest.mark.sim
def test_the_simulated_loop_settles_without_flapping() -> None:
    figures = _simulated()
    assert figures["settle_steps"] <= 2.0
    assert figures["flips"] == 0
    assert figures["violations"] == 0
    assert figures["utilisation_after"] >= 0.95


@pytest.mark.slow
def test_memory_starts_fewer_workers_and_keeps_the_learner_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replan, "spot_instances", lambda: [(0.0, 12), (900.0, 9), (1800.0, 12), (3600.0, 12)])
    figures = replan.run(Namespace(seeds=0, hours=1.0, start_s=120.0, share=0.5, discount=0.3)).figures
    assert figures["starts_per_h"] < figures["starts_per_h_memoryless"]
    assert figures["utilisation"] >= figures["utilisation_memoryless"]
