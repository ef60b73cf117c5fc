"""Test that the rates of preemption follow what is seen, market by market."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.replan.preemptions import MARKETS_MAX, PRIOR_HOURS, Preemptions
from tests.capacity.sample_plan import sample_worker

HOUR_S = 3600.0
WORKER = replace(sample_worker(0, 1.0), preemptions_per_hour=0.5, region="a", provider="spot")


def test_the_stated_rate_holds_until_something_is_seen() -> None:
    assert Preemptions().per_hour(WORKER, 0.0) == 0.5


def test_hours_without_a_preemption_lower_the_rate_and_preemptions_raise_it() -> None:
    calm, rough = Preemptions(), Preemptions()
    for one in (calm, rough):
        for _ in range(16):
            one.came(WORKER, 0.0)
    for number in range(8):
        rough.gone(WORKER, number * 450.0, preempted=True)
        rough.came(WORKER, number * 450.0)
    assert calm.per_hour(WORKER, HOUR_S) == pytest.approx(0.5 * PRIOR_HOURS / (PRIOR_HOURS + 16.0))
    assert rough.per_hour(WORKER, HOUR_S) > 0.45
    assert calm.learned(WORKER, HOUR_S).preemptions_per_hour < 0.2


def test_workers_that_leave_otherwise_are_no_preemptions_and_markets_are_apart() -> None:
    seen = Preemptions()
    elsewhere = replace(WORKER, region="b")
    for worker in (WORKER, elsewhere):
        seen.came(worker, 0.0)
        seen.came(worker, 0.0)
    seen.gone(WORKER, 60.0, preempted=False)
    seen.gone(elsewhere, 60.0, preempted=True)
    assert seen.per_hour(WORKER, 60.0) < 0.5 < seen.per_hour(elsewhere, 60.0)


def test_what_was_seen_fades() -> None:
    seen = Preemptions()
    seen.came(WORKER, 0.0)
    seen.gone(WORKER, 1.0, preempted=True)
    assert seen.per_hour(WORKER, 1.0) > 0.6
    assert seen.per_hour(WORKER, 100 * HOUR_S) == pytest.approx(0.5, abs=1e-3)


def test_what_was_seen_is_restored_and_the_markets_with_the_most_hours_are_kept() -> None:
    before, after = Preemptions(), Preemptions()
    for number in range(MARKETS_MAX + 1):
        worker = replace(WORKER, region=f"r{number}")
        before.came(worker, -10.0 * number)
        before.gone(worker, 0.0, preempted=True)
    after.restore(before.seen(), 5.0)
    assert after.seen() == before.seen()
    assert after.per_hour(worker, 5.0) == before.per_hour(worker, 0.0)
    assert after.per_hour(replace(WORKER, region="r0"), 5.0) == WORKER.preemptions_per_hour


def test_of_more_markets_than_are_kept_the_one_longest_without_workers_is_removed() -> None:
    seen = Preemptions()
    seen.came(WORKER, 0.0)  # stays, and so does its market, for as long as it is there
    markets = [replace(WORKER, region=f"r{number}") for number in range(MARKETS_MAX + 1)]
    for number, worker in enumerate(markets):
        seen.came(worker, float(number))
        seen.gone(worker, float(number), preempted=True)
    kept = {one.market[1] for one in seen.seen()}
    assert len(kept) == MARKETS_MAX
    assert {WORKER.region, "r2", f"r{MARKETS_MAX}"} <= kept
    assert kept.isdisjoint({"r0", "r1"})
    assert len(seen._markets) == MARKETS_MAX
