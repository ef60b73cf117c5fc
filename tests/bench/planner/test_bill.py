from __future__ import annotations

from bench.planner.bill import savings
from capacity.questions.bill import bill_of
from capacity.questions.comparison import Alternative, Comparison, Way
from tests.capacity.sample_plan import sample_demand


def alternative(way: Way, learner_usd_per_hour: float) -> Alternative:
    bill = bill_of(sample_demand(learner_usd_per_hour=learner_usd_per_hour), 0.0, 0.0, 1.0)
    return Alternative(way=way, machines="", step_s=60.0, utilisation=1.0, bill=bill, plan=None)


def test_the_headline_is_rented_workers_against_synchronous_generation() -> None:
    ways = (alternative("plan", 2.0), alternative("rented", 3.0), alternative("synchronous", 6.0))
    found = savings(Comparison(model="m", learner="8 x gpu", alternatives=ways), "4b")
    assert found["saving_4b"] == 0.5
    assert set(found) == {"saving_4b", "saving_4b_donated"}, "no figure of a way that has no set"
