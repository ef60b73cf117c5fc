from __future__ import annotations

from dataclasses import replace

from capacity.model.demand import Conduct
from capacity.model.workers import Speed
from capacity.questions.promise import promised
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
