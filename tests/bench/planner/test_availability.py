from __future__ import annotations

from random import Random

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


def test_drawn_machines_go_at_about_their_rate_and_come_back() -> None:
    changes = list(drawn(ZONES, 40, 24 * 3600.0, Random(1)))
    assert [at_s for at_s, *_ in changes] == sorted(at_s for at_s, *_ in changes)
    gone = sum(not comes for *_, comes in changes)
    assert 0.25 * 40 * 24 * 0.5 < gone < 1.5 * 40 * 24 * 0.5
    assert sum(comes for *_, comes in changes) > 0.8 * gone


def test_prices_walk_around_their_mean() -> None:
    factors = walk(Random(2), Prices(), 3000 * 3600.0)
    assert abs(sum(factors) / len(factors) - 1.0) < 0.05


def test_a_pool_tells_prices_each_period_and_only_of_who_is_here() -> None:
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
