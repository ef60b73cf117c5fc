from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.demand import Conduct
from capacity.model.workers import Speed
from capacity.predict.prediction import predict
from capacity.questions import promise
from capacity.questions.promise import promised, promises
from tests.capacity.planner.test_planner import demand, worker

LENGTHS = tuple([1.0] * 18 + [4.0] * 2)
SPEEDS = (Speed(2, 2 / 15.0, 30.0, 15.0),)


def test_a_plan_promises_what_groups_and_waits_leave() -> None:
    workers = [worker(number, speeds=SPEEDS) for number in range(12)]
    wanted = demand(rollouts_per_step=24, length_quantiles=LENGTHS, conduct=Conduct(samples_per_group=4))
    made = promised(wanted, workers)
    assert made.expected is not None
    assert made.utilisation == made.expected.utilisation > 0.9
    assert 0.0 <= made.expected.dropped_share < 0.1
    assert 0.0 < made.expected.mean_age <= wanted.staleness_limit
    assert made.expected.t_bcast_p95_s > 0


def test_more_is_bought_where_draining_leaves_the_learner_idle() -> None:
    workers = [worker(number, speeds=SPEEDS) for number in range(24)]
    conduct = Conduct(samples_per_group=4, lead_margin_steps=0.0)
    tight = demand(rollouts_per_step=24, headroom=1.0, length_quantiles=LENGTHS, conduct=conduct)
    made = promised(tight, workers)
    finish = promised(replace(tight, conduct=replace(conduct, at_version_swap="finish")), workers)
    assert finish.feasible
    assert len(finish.chosen) > len(made.chosen), "a drained worker makes less"


def test_an_infeasible_plan_promises_nothing() -> None:
    made = promised(demand(staleness_limit=1), [worker(0)])
    assert not made.feasible
    assert made.expected is None


def test_the_whole_bill_decides_how_much_slack_is_bought() -> None:
    """An expensive learner is worth more workers, and no slack that was tried makes a step cheaper."""
    workers = [worker(number, speeds=SPEEDS) for number in range(24)]
    conduct = Conduct(samples_per_group=4, lead_margin_steps=0.0)
    asked = demand(rollouts_per_step=24, headroom=1.0, length_quantiles=LENGTHS, conduct=conduct)
    cheap = promised(replace(asked, learner_usd_per_hour=0.5), workers)
    dear = promised(replace(asked, learner_usd_per_hour=500.0), workers)
    for made in (cheap, dear):
        assert made.expected is not None
        best = min(made.expected.trials, key=lambda one: one.usd_per_step)
        assert (best.headroom, best.margin_steps) == (made.demand.headroom, made.demand.margin_steps)
    assert dear.utilisation > cheap.utilisation
    assert dear.workers_usd_per_hour > cheap.workers_usd_per_hour


def test_what_is_promised_is_predicted_in_full_and_no_worse_than_all_others() -> None:
    workers = [worker(number, speeds=SPEEDS) for number in range(24)]
    conduct = Conduct(samples_per_group=4, lead_margin_steps=0.0)
    asked = demand(
        rollouts_per_step=24, headroom=1.0, length_quantiles=LENGTHS, conduct=conduct, learner_usd_per_hour=500.0
    )
    made = promised(asked, workers)
    on = [(one.worker, one.speed) for one in made.chosen if one.speed is not None]
    found = predict(made.demand, on, conduct, warm_up_steps=40, steps=40, draws=2, workers_max=24)
    assert (made.utilisation, made.expected and made.expected.mean_age) == (found.utilisation, found.mean_staleness)
    in_full = [promise.trial_of(one).usd_per_step for one in promises(asked, workers)]
    assert promise.trial_of(made).usd_per_step == min(in_full)
    assert len(in_full) > 1


def test_a_run_that_never_waits_is_predicted_by_one_sample() -> None:
    workers = [worker(number, speeds=SPEEDS) for number in range(24)]
    asked = demand(rollouts_per_step=24, headroom=1.5, conduct=Conduct(samples_per_group=4))
    made = promised(asked, workers)
    on = [(one.worker, one.speed) for one in made.chosen if one.speed is not None]
    found = predict(made.demand, on, asked.conduct, warm_up_steps=40, steps=40, draws=1, workers_max=24)
    assert made.expected is not None
    assert made.utilisation > 0.999
    assert (made.expected.mean_age, made.expected.dropped_share) == (found.mean_staleness, found.dropped_share)


def test_a_large_pool_is_planned_as_if_all_its_workers_were_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [worker(number, speeds=SPEEDS, usd_per_hour=0.2 + 0.001 * (number * 37 % 800)) for number in range(800)]
    conduct = Conduct(samples_per_group=4, lead_margin_steps=0.0)
    asked = demand(
        rollouts_per_step=24, headroom=1.0, length_quantiles=LENGTHS, conduct=conduct, learner_usd_per_hour=50.0
    )
    whole = promised(asked, workers)
    monkeypatch.setattr(promise, "_MANY", 1)
    monkeypatch.setattr(promise, "_NEAR_MIN", 40)
    near = promised(asked, workers)
    assert near.demand.headroom > 1.0, "the plan with slack was planned again"
    assert len(near.candidates) == len(workers)
    assert promise.trial_of(near) == promise.trial_of(whole)
    assert {len(one.candidates) for one in promises(asked, workers)} == {len(workers)}
