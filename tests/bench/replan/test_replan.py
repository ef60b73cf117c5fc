"""Test the benchmarks of changing fleets: workers switched on and off, machines that come and go, re-planning."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from random import Random

import pytest

from bench.replan import replan
from bench.replan.activation import DWELL_S, STEP_S, Step, Switch, _simulated, judged
from bench.replan.availability import Pool, Prices, Zone, average, drawn, recorded, shifted, walk
from bench.replan.baselines import Fallback, Greedy, OnDemand, SpotOnly, Sticky
from capacity.model.demand import Demand
from capacity.replan.events import DemandSeen, Start, Stop, Tick, WorkerGone, WorkerSeen
from capacity.replan.replaying import Policy, Replay, Replayed

ZONES = [Zone(f"z{number}", f"r{number // 2}", 1.0, 1.0, 0.5) for number in range(4)]


def test_each_zone_follows_its_recorded_number_of_machines() -> None:
    here: dict[str, set[str]] = {"z0": set(), "z1": set()}
    counts = [(0.0, 2), (10.0, 5), (20.0, 1), (30.0, 3)]
    later = [(5.0, 1), (15.0, 0)]
    sizes: dict[str, dict[float, int]] = {"z0": {}, "z1": {}}
    times = []
    for at_s, name, zone, comes in recorded([(ZONES[0], counts), (ZONES[1], later)], Random(0)):
        (here[zone.name].add if comes else here[zone.name].remove)(name)
        sizes[zone.name][at_s] = len(here[zone.name])
        times.append(at_s)
    assert times == sorted(times)
    assert sizes == {"z0": dict(counts), "z1": dict(later)}


def test_a_record_is_shifted_scaled_and_goes_on_with_its_start() -> None:
    assert shifted([(0.0, 40), (10.0, 20), (30.0, 10), (40.0, 10)], 15.0, 4) == [
        (0.0, 2),
        (15.0, 1),
        (25.0, 4),
        (35.0, 2),
    ]


def test_the_average_rate_counts_machines_while_they_are_there() -> None:
    fast = replace(ZONES[0], rollouts_per_second=2.0)
    changes = [(0.0, "a", ZONES[0], True), (50.0, "b", fast, True), (75.0, "a", ZONES[0], False)]
    assert average(changes, 100.0) == pytest.approx(0.75 + 1.0)


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


FLEET = replan.FLEETS["alike"]


def test_a_market_is_the_same_for_every_policy() -> None:
    market = replan.market_of("aws", FLEET, 0, 3600.0)
    assert list(market.events(FLEET, 0)) == list(market.events(FLEET, 0))
    assert market.changes != replan.market_of("aws", FLEET, 1, 3600.0).changes
    assert market.rate_needed > 0.0


def replayed(policy: Policy, market: replan.Market) -> Replayed:
    return Replay(policy, start_s=FLEET.start_s).run(market.events(FLEET, 0), market.seconds)


def test_the_rules_to_compare_with_do_as_their_names_say() -> None:
    market = replan.market_of("gcp", FLEET, 0, 3600.0)
    rented = replayed(OnDemand(180.0), market)
    assert {switch.worker_id.split("-")[0] for switch in rented.switches} == {"rented"}
    sticky, greedy = replayed(Sticky(180.0), market), replayed(Greedy(180.0), market)
    spot, fallback = replayed(SpotOnly(180.0, 1.5), market), replayed(Fallback(180.0), market)
    assert greedy.starts > sticky.starts
    assert spot.usd > 1.3 * sticky.usd
    assert rented.usd > 2.0 * sticky.usd
    assert not any(switch.worker_id.startswith("rented") for switch in spot.switches)
    for one in (rented, sticky, spot, fallback):
        assert one.utilisation > 0.9
        assert one.fixed_usd == pytest.approx(FLEET.learner_usd_per_hour)


def test_fallback_returns_on_demand_machines_when_spot_machines_generate() -> None:
    zone = replace(ZONES[0], hardware="a100-sxm")
    rented = replace(zone, name="rented", spot=False)
    pool = Pool((zone, rented), Prices(speed_sigma=0.0), 1000.0, Random(0), 60.0)
    demand = Demand(
        rollouts_per_step=60, t_train_s=60.0, staleness_limit=4, update_bytes=1e6, learner_upload_bytes_per_second=1e8,
        headroom=1.0,
    )  # fmt: skip
    made = Fallback(60.0)
    made.handle(DemandSeen(demand), 0.0)
    made.handle(pool.seen("rented-0", rented, 0.0), 0.0)
    assert made.handle(Tick(), 2.0) == [Start("rented-0", "on")]
    made.handle(pool.seen("z0-1", zone, 10.0), 10.0)
    assert made.handle(Tick(), 12.0) == [Start("z0-1", "on")]
    assert made.next_at == 72.0
    assert made.handle(Tick(), 72.0) == [Stop("rented-0", "off")]


@pytest.mark.slow
def test_re_planning_costs_less_than_the_best_rule() -> None:
    chosen = Namespace(seeds=1, first_seed=0, hours=2.0, fleets=["alike"], markets=["gcp"])
    figures = replan.run(chosen).figures
    assert figures["usd_per_useful_hour_ratio_max"] <= 1.01
    assert figures["utilisation"] > 0.9
    assert figures["starts_per_hour"] < figures["starts_per_hour_greedy"]
