"""Test the bytes of a version, and the cost of sending them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model.broadcast_bound import broadcast_rate
from capacity.model.egress import Copies, cheapest_copies, copies_by_uplink, egress_usd_per_hour
from capacity.model.topologies import Shape, Topology
from capacity.model.version_bytes import Precision, delta_share

SHAPES: tuple[Shape, ...] = ("stripes", "tree", "chain", "star")

links = st.lists(st.one_of(st.just(0.0), st.floats(1.0, 1e9)), min_size=1, max_size=12)


@given(st.sampled_from(SHAPES), st.floats(1.0, 1e9), links)
def test_each_receivers_copy_is_sent_once(shape: Shape, source: float, uploads: list[float]) -> None:
    up = np.array(uploads)
    downloads = np.full(up.size, 1e9)
    copies = copies_by_uplink(source, up, downloads, Topology(shape))
    assert copies.source >= 1
    assert (copies.receivers >= 0).all()
    if shape in ("stripes", "star") or broadcast_rate(source, up, downloads, Topology(shape)) > 0:
        assert copies.total == pytest.approx(up.size)


def test_stripes_send_by_uplink_and_the_source_at_least_once() -> None:
    many = np.array([30.0, 10.0, 0.0, 0.0])
    shared = copies_by_uplink(40.0, many, np.full(4, 1e3), Topology())
    assert (shared.source, shared.receivers.tolist()) == (2.0, [1.5, 0.5, 0.0, 0.0])
    slow = copies_by_uplink(1.0, many, np.full(4, 1e3), Topology())
    assert (slow.source, slow.receivers.tolist()) == (1.0, [2.25, 0.75, 0.0, 0.0])


def test_where_all_uplinks_are_full_a_worker_sends_its_uplink_over_the_rate() -> None:
    uploads, downloads = np.array([30.0, 10.0, 20.0]), np.full(3, 1e3)
    stripes = Topology("stripes", 10**9)
    rate = broadcast_rate(60.0, uploads, downloads, stripes)
    assert copies_by_uplink(60.0, uploads, downloads, stripes).receivers == pytest.approx(uploads / rate)


def test_a_tree_sends_whole_copies_from_the_fastest_uplink_down() -> None:
    copies = copies_by_uplink(10.0, np.array([0.0, 25.0, 11.0, 0.0]), np.full(4, 10.0), Topology("tree"))
    assert (copies.source, copies.receivers.tolist()) == (1.0, [0.0, 2.0, 1.0, 0.0])


def test_a_chain_sends_once_each_but_the_last_and_a_star_from_the_source() -> None:
    uploads, downloads = np.array([5.0, 1.0, 9.0]), np.full(3, 10.0)
    assert copies_by_uplink(9.0, uploads, downloads, Topology("chain")).receivers.tolist() == [1.0, 0.0, 1.0]
    star = copies_by_uplink(9.0, uploads, downloads, Topology("star"))
    assert (star.source, star.receivers.tolist()) == (3.0, [0.0, 0.0, 0.0])


def test_the_cheapest_send_first_as_much_as_they_can() -> None:
    found = cheapest_copies(10.0, 0.09, np.array([1.0, 2.0, 5.0]), np.array([0.15, 0.0, 0.05]))
    assert found is not None
    assert (found.source, found.receivers.tolist()) == (1.0, [0.0, 2.0, 0.0])
    dear = cheapest_copies(10.0, 0.0, np.zeros(4), np.full(4, 0.09))
    assert dear is not None
    assert dear.source == 4.0


def test_copies_that_no_member_can_send_in_time_are_no_plan() -> None:
    assert cheapest_copies(1.0, 0.0, np.array([0.5, 0.2]), np.zeros(2)) is None
    assert cheapest_copies(0.5, 0.0, np.array([9.0]), np.zeros(1)) is None


@given(st.floats(1.0, 1e9), links, st.data())
def test_the_cheapest_never_cost_more_than_by_uplink(source: float, uploads: list[float], data: st.DataObject) -> None:
    up = np.array(uploads)
    downloads = np.full(up.size, 1e9)
    stripes = Topology("stripes", 10**9)
    rate = broadcast_rate(source, up, downloads, stripes) * (1 - 1e-9)
    prices = np.array(data.draw(st.lists(st.floats(0, 1), min_size=up.size, max_size=up.size)))
    least = cheapest_copies(source / rate, 0.09, up / rate, prices)
    shared = copies_by_uplink(source, up, downloads, stripes)
    assert least is not None
    cost = [
        egress_usd_per_hour(
            one, update_bytes=1e9, publish_period_s=60.0, source_usd_per_gb=0.09, usd_per_gb=prices
        ).usd_per_hour
        for one in (least, shared)
    ]
    assert cost[0] <= cost[1] * (1 + 1e-6) + 1e-9


def test_one_copy_of_an_8b_version_each_minute_costs_what_the_design_notes_say() -> None:
    keyframe = egress_usd_per_hour(
        Copies(1.0, np.zeros(1)),
        update_bytes=16.5e9,
        publish_period_s=60.0,
        source_usd_per_gb=0.09,
        usd_per_gb=np.zeros(1),
    )
    assert keyframe.usd_per_hour == pytest.approx(89.1)
    assert keyframe.origin_usd_per_hour * 0.05 == pytest.approx(4.4, abs=0.1)
    with pytest.raises(ValueError, match="positive"):
        egress_usd_per_hour(
            Copies(1.0, np.zeros(0)),
            update_bytes=1.0,
            publish_period_s=0.0,
            source_usd_per_gb=0.0,
            usd_per_gb=np.zeros(0),
        )


def test_without_receivers_no_copies_are_sent() -> None:
    assert copies_by_uplink(1.0, np.zeros(0), np.zeros(0), Topology()).total == 0.0
    none = cheapest_copies(1.0, 0.0, np.zeros(0), np.zeros(0))
    assert none is not None
    assert none.total == 0.0


precisions = st.sampled_from(["bf16", "fp8"])

learning_rates = st.floats(1e-8, 1e-2)


@pytest.mark.parametrize(
    ("learning_rate", "steps", "precision", "low", "high"),
    [  # the whole table of the design notes
        (1e-6, 1, "bf16", 0.007, 0.009),
        (1e-6, 8, "bf16", 0.027, 0.037),
        (3e-6, 1, "bf16", 0.015, 0.020),
        (1e-5, 1, "bf16", 0.034, 0.045),
        (1e-5, 8, "bf16", 0.11, 0.165),
        (1e-6, 1, "fp8", 0.0012, 0.0014),
        (1e-6, 8, "fp8", 0.005, 0.006),
        (3e-6, 1, "fp8", 0.0028, 0.0030),
        (1e-5, 1, "fp8", 0.006, 0.007),
        (1e-5, 8, "fp8", 0.025, 0.029),
    ],
)
def test_shares_are_those_measured(
    learning_rate: float, steps: int, precision: Precision, low: float, high: float
) -> None:
    assert low <= delta_share(learning_rate, steps, precision) <= high


@given(precisions, learning_rates, learning_rates, st.integers(1, 64), st.integers(1, 64))
def test_larger_steps_and_more_of_them_change_more(
    precision: Precision, one: float, other: float, few: int, many: int
) -> None:
    low, high = sorted((one, other))
    less, more = sorted((few, many))
    assert 0 < delta_share(low, less, precision) <= delta_share(high, more, precision) * (1 + 1e-12)
    assert delta_share(high, more, precision) <= 0.78


@given(precisions, learning_rates, st.integers(1, 64))
def test_one_squashed_delta_is_no_larger_than_all_of_them(precision: Precision, rate: float, steps: int) -> None:
    assert delta_share(rate, steps, precision) <= steps * delta_share(rate, 1, precision)


def test_arguments_out_of_range_are_refused() -> None:
    for wrong in ((0.0, 1), (-1.0, 1), (1e-6, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            delta_share(*wrong)
