from __future__ import annotations

import numpy as np
import pytest

from capacity.model.workers import Speed
from capacity.planner.columns import PRICE_LEVELS_MAX, columns_of
from tests.capacity.planner.test_planner import worker

SPEEDS = (Speed(1, 0.1, 10.0), Speed(8, 0.5, 20.0), Speed(64, 0.4, 60.0))


def test_the_fastest_speed_that_fits_is_taken() -> None:
    columns = columns_of([worker(0, speeds=SPEEDS), worker(1, speeds=SPEEDS[:1]), worker(2, speeds=())])
    for t_gen_s, index, rate in ((5.0, [-1, -1, -1], [0, 0, 0]), (100.0, [1, 0, -1], [0.5, 0.1, 0])):
        found, rates = columns.fastest_within(t_gen_s)
        assert found.tolist() == index
        assert rates.tolist() == pytest.approx(rate)
    assert columns.generation_times_s().tolist() == [10.0, 20.0, 60.0]


def test_who_may_not_relay_has_no_uplink_and_regions_are_numbered() -> None:
    columns = columns_of([worker(0, relays=False, region="b"), worker(1, region="a", pin="off"), worker(2)])
    assert columns.upload.tolist() == [0.0, 2e7, 2e7]
    assert columns.regions == ("a", "b")
    assert columns.region.tolist() == [1, 0, -1]
    assert columns.pin.tolist() == [0, -1, 0]


def test_too_many_egress_prices_are_rounded_down_to_levels() -> None:
    prices = np.linspace(0.0, 0.1, 100)
    columns = columns_of([worker(number, egress_usd_per_gb=float(price)) for number, price in enumerate(prices)])
    at_level = columns.level_usd_per_gb[columns.level]
    assert columns.level_usd_per_gb.size == PRICE_LEVELS_MAX
    assert (at_level <= columns.egress_usd_per_gb).all()
    assert (columns.egress_usd_per_gb - at_level).max() < 0.1 / 25


def test_copies_of_a_worker_are_not_pinned() -> None:
    columns = columns_of([worker(0), worker(1, pin="on", usd_per_hour=3.0)]).with_copies(1, 2)
    assert len(columns) == 4
    assert columns.price.tolist() == [1.0, 3.0, 3.0, 3.0]
    assert columns.pin.tolist() == [0, 1, 0, 0]
