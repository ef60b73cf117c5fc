from __future__ import annotations

import numpy as np
import pytest

from capacity.model.workers import Speed
from capacity.planner.columns import columns_of
from capacity.planner.linear import relax
from capacity.planner.local_search import dropped, improved, rounded, weights_of
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from capacity.planner.totals import totals_of
from tests.capacity.planner.test_planner import demand, worker


def solved(prices_and_rates: list[tuple[float, float]], **fields: object):  # type: ignore[no-untyped-def]
    workers = [
        worker(number, usd_per_hour=price, speeds=(Speed(1, rate, 20.0),), **fields)
        for number, (price, rate) in enumerate(prices_and_rates)
    ]
    relaxation = relax(programme_of(demand(), columns_of(workers), Split(20.0, 100.0)))
    assert relaxation is not None
    return relaxation, totals_of(relaxation.programme)


@pytest.mark.parametrize(
    ("pool", "best"),
    [
        ([(2.0, 2.0), (2.0, 2.0), (2.0, 2.0), (1.1, 1.0)], 5.1),  # the last one out, a smaller one in
        ([(3.0, 3.0), (3.1, 3.0), (2.05, 2.0)], 5.05),
        ([(5.2, 5.0), (2.5, 2.5), (2.6, 2.4), (0.2, 0.1)], 5.2),  # several out, one in
    ],
)
def test_swaps_find_the_best_of_a_handful(pool: list[tuple[float, float]], best: float) -> None:
    relaxation, totals = solved(pool)
    chosen = rounded(relaxation)
    found = improved(relaxation, totals, chosen, weights_of(relaxation, totals, chosen))
    sums = totals.of(found)[None, :]
    assert totals.feasible(sums)[0]
    assert totals.usd_per_hour(sums)[0] == pytest.approx(best)


def test_rounding_takes_every_part() -> None:
    relaxation, _ = solved([(2.0, 2.0)] * 4)
    assert rounded(relaxation).sum() == 3
    assert relaxation.x.sum() == pytest.approx(2.5)


def test_who_is_not_needed_is_dropped_in_order() -> None:
    _, totals = solved([(1.0, 2.0)] * 5)
    found = dropped(totals, np.ones(5, np.bool_), np.array([3, 1, 0, 2, 4]))
    assert found.tolist() == [True, False, True, False, True]


def test_the_pinned_stay() -> None:
    relaxation, totals = solved([(1.0, 2.0)] * 5, pin="on")
    assert dropped(totals, np.ones(5, np.bool_), np.arange(5)).all()
    chosen = rounded(relaxation)
    assert improved(relaxation, totals, chosen, weights_of(relaxation, totals, chosen)).all()
