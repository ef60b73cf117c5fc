from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.columns import columns_of
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from capacity.planner.senders import copies_sent, egress_of
from capacity.planner.totals import Weights, totals_of
from tests.capacity.planner.plan_checks import holds, usd_per_hour
from tests.capacity.planner.plan_strategies import demands, pools
from tests.capacity.planner.test_planner import demand, worker


@settings(deadline=None, max_examples=80)
@given(demands(), pools())
def test_totals_say_what_a_set_costs_and_whether_it_holds(wanted: Demand, workers: list[Worker]) -> None:
    if wanted.budget_s <= 20.0:
        return
    split = Split(20.0, wanted.budget_s - 20.0)
    programme = programme_of(wanted, columns_of(workers), split)
    if programme.rate_needed is None:
        return
    totals, chosen = totals_of(programme), programme.eligible
    sums = totals.of(chosen)[None, :]
    on = [(one, one.speeds[speed]) for one, speed, is_on in zip(workers, programme.speed, chosen, strict=True) if is_on]
    feasible = bool(chosen.any()) and programme.origin_feeds >= 1 and bool(totals.feasible(sums)[0])
    assert feasible == (bool(on) and holds(wanted, on, split.t_bcast_s))
    if feasible:
        usd = usd_per_hour(wanted, [one for one, _ in on], split.t_bcast_s)
        assert float(totals.usd_per_hour(sums)[0]) == pytest.approx(usd)
        egress = egress_of(programme, copies_sent(programme, chosen))
        prices = sum(one.usd_per_hour for one, _ in on)
        assert prices + egress.usd_per_hour == pytest.approx(usd)


def test_broken_rows_count_by_their_weights() -> None:
    workers = [worker(number, relays=False) for number in range(4)]
    programme = programme_of(demand(), columns_of(workers), Split(20.0, 30.0))
    totals = totals_of(programme)
    sums = totals.of(np.ones(4, np.bool_))[None, :]
    usd, rate, copies = (float(value[0]) for value in totals.judged(sums))
    assert (usd, rate) == (4.0, 1.0)
    assert copies == pytest.approx(4 - 5e7 / (1.06e9 / 30))
    assert totals.penalised(sums, Weights(2.0, 3.0))[0] == pytest.approx(usd + 2 * rate + 3 * copies)


def test_where_no_rate_is_enough_no_set_holds() -> None:
    """Workers that pause for longer than a step never keep up, however many there are."""
    pausing = demand(pauses_while_receiving=True, t_train_s=60.0)
    programme = programme_of(pausing, columns_of([worker(number) for number in range(3)]), Split(20.0, 100.0))
    totals = totals_of(programme)
    assert not totals.feasible(totals.of(np.ones(3, np.bool_))[None, :])[0]
