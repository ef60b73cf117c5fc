from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from capacity.model.demand import Conduct
from capacity.model.workers import Speed
from capacity.predict.prediction import Prediction
from capacity.questions import promise
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


def test_the_lowest_of_several_sampled_runs_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Prediction(share, 1.0, 2.0, 0.1, 1.0) for share in (1.0, 0.9, 0.99, 0.99, 0.99, 0.99, 0.1)]
    sampled = iter(runs)
    monkeypatch.setattr(promise, "samples", lambda *_, **__: sampled)
    made = promised(demand(rollouts_per_step=24), [worker(number, speeds=SPEEDS) for number in range(12)])
    assert made.expected is not None
    assert made.expected.utilisation == 0.9
    assert made.utilisation == pytest.approx(mean(one.utilisation for one in runs[:6]))
    assert next(sampled) is runs[6]


def test_two_sampled_runs_suffice_where_they_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = iter([Prediction(share, 1.0, 2.0, 0.1, 1.0) for share in (0.999, 0.998, 0.5)])
    monkeypatch.setattr(promise, "samples", lambda *_, **__: sampled)
    made = promised(demand(rollouts_per_step=24), [worker(number, speeds=SPEEDS) for number in range(12)])
    assert made.expected is not None
    assert made.expected.utilisation == 0.998
