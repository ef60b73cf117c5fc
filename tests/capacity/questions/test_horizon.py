from __future__ import annotations

import inspect

import pytest

from capacity.model.assumptions import Assumption
from capacity.planner.planner import plan
from capacity.questions import scenario_assumptions
from capacity.questions.horizon import _ABOUT, Uncertainty, forecast, uncertainty_of
from tests.capacity.planner.test_planner import demand, worker

CERTAIN = Uncertainty(t_train=0.0, speeds=0.0, links=0.0)


def made(**fields: object):  # type: ignore[no-untyped-def]
    wanted = demand(learner_usd_per_hour=2.0, storage_usd_per_hour=0.1, learner_egress_usd_per_gb=0.01)
    return plan(wanted, [worker(number, **fields) for number in range(8)])


def test_without_uncertainty_it_is_arithmetic() -> None:
    chosen = made()
    found = forecast(chosen, 120, CERTAIN, seed=0)
    assert found.hours.p10 == found.hours.p90 == pytest.approx(2.0)
    assert found.learner_usd.p50 == pytest.approx(4.0)
    assert found.storage_usd.p50 == pytest.approx(0.2)
    assert found.workers_usd.p50 == pytest.approx(2 * chosen.workers_usd_per_hour)
    assert found.egress_usd.p50 == pytest.approx(2 * chosen.egress_usd_per_hour)
    assert found.usd.p50 == pytest.approx(2 * (chosen.usd_per_hour + 2.1))
    assert found.utilisation.p10 == 1.0
    assert found.in_time is None


def test_less_certain_is_wider_and_the_same_seed_gives_the_same() -> None:
    chosen = made()
    some, more = Uncertainty(t_train=0.05, speeds=0.05), Uncertainty(t_train=0.2, speeds=0.2, prices=0.5)
    narrow, wide = forecast(chosen, 100, some, seed=1), forecast(chosen, 100, more, seed=1)
    assert wide.usd.p90 - wide.usd.p10 > narrow.usd.p90 - narrow.usd.p10
    assert narrow == forecast(chosen, 100, some, seed=1)
    assert narrow != forecast(chosen, 100, some, seed=2)


def test_deadline_and_budget_are_met_in_a_share_of_the_samples() -> None:
    found = forecast(made(), 120, Uncertainty(), seed=0, deadline_hours=2.1, budget_usd=1e6)
    assert found.in_time is not None
    assert 0.1 < found.in_time < 0.9
    assert found.in_budget == 1.0


def test_slow_workers_make_the_learner_wait() -> None:
    found = forecast(made(), 100, Uncertainty(t_train=0.0, speeds=0.3, links=0.0), seed=0)
    assert found.utilisation.p10 < 0.9
    assert found.utilisation.p90 == 1.0


def test_preemptions_vary_more_in_a_short_run() -> None:
    chosen = made(preemptions_per_hour=1.0, lost_per_preemption_s=600.0)
    short, long = (forecast(chosen, steps, CERTAIN, seed=0) for steps in (60, 6000))
    assert short.hours.p90 / 60 > long.hours.p90 / 6000


def test_declared_uncertainties_are_found_by_name() -> None:
    found = uncertainty_of(
        [
            Assumption("learner step, T_train", 60.0, "s", "given", 0.02),
            Assumption("engine's efficiency", 0.7, "", "x", 0.1),
            Assumption("workers with estimated speeds", 3, "", "x", 0.15),
        ]
    )
    assert found == Uncertainty(t_train=0.02, speeds=0.15, links=0.0)
    source = inspect.getsource(scenario_assumptions)
    assert all(f'"{name}"' in source for name in _ABOUT)


def test_a_plan_without_workers_has_no_forecast() -> None:
    with pytest.raises(ValueError, match="feasible"):
        forecast(plan(demand(), []), 10, CERTAIN, seed=0)
