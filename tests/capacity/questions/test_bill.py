"""Test the whole bill, and the forecast's goals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.planner.plans import Expected
from capacity.questions.bill import bill_of
from capacity.questions.goal import Goal, _largest, _up, chosen_for, verdict_of
from capacity.questions.scenario import Scenario, scenario_of
from tests.capacity.questions.test_scenario import shipped_demand, shipped_pool
from tests.capacity.sample_plan import sample_demand, sample_plan, sample_workers


def sample_scenario() -> Scenario:
    found = scenario_of(shipped_demand(), shipped_pool(), demand_source="", pool_source="")
    return replace(found, workers=tuple(sample_workers()))


def test_waiting_makes_a_step_dearer_but_publishes_less() -> None:
    demand = sample_demand(learner_usd_per_hour=10.0, coordinator_usd_per_hour=0.5, storage_usd_per_hour=0.1)
    busy, waiting = (bill_of(demand, 4.0, 2.0, utilisation) for utilisation in (1.0, 0.5))
    assert busy.usd_per_hour == pytest.approx(16.6)
    assert busy.usd_per_step == pytest.approx(16.6 / 60)
    assert waiting.usd_per_hour == pytest.approx(15.6)
    assert waiting.usd_per_step == pytest.approx(15.6 / 30)
    assert bill_of(demand, 0.0, 0.0, 0.0).usd_per_step == 0.0


def test_the_cheapest_plan_in_time_is_chosen_else_the_fastest() -> None:
    asked, slow = sample_scenario(), sample_plan()
    fast = replace(slow, demand=replace(slow.demand, t_train_s=20.0, learner_usd_per_hour=90.0))
    plans = [(asked, slow), (asked, fast)]
    assert chosen_for(Goal(steps=60, deadline_hours=10.0), plans, seed=0).plan is slow
    goal = Goal(steps=60, deadline_hours=0.01, budget_usd=1e-3)
    choice = chosen_for(goal, plans, seed=0)
    assert choice.plan is fast
    verdict = verdict_of(replace(goal, deadline_hours=None), choice, seed=0)
    assert not verdict.kept
    assert "the budget is 0.001 $" in verdict.what


def test_waits_that_are_expected_make_the_run_longer() -> None:
    waits = replace(sample_plan(), utilisation=0.5, expected=Expected(0.4, 0.0, 1.0, 2.0))
    goal, asked = Goal(steps=60), sample_scenario()
    sure = chosen_for(goal, [(asked, sample_plan())], seed=0).forecast
    assert chosen_for(goal, [(asked, waits)], seed=0).forecast.hours.p50 == pytest.approx(2.0 * sure.hours.p50)


def test_changes_are_rounded_so_that_they_suffice() -> None:
    assert _up(12.341) == pytest.approx(12.4)
    assert _up(0.5) == pytest.approx(0.5)
    assert _largest(lambda number: number <= 37, 100) == 37
    assert _largest(lambda number: False, 100) == 0
