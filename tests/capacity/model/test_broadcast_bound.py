"""Test the least time in which a version can reach all workers, and the shapes of broadcast that come near it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.model.broadcast_bound import (
    broadcast_rate,
    broadcast_seconds,
    common_rate,
    common_seconds,
    fluid_rate,
    level_for,
    stripe_factor,
    tree_places,
)
from capacity.model.topologies import Shape, Topology

SHAPES: tuple[Shape, ...] = ("stripes", "tree", "chain", "star")

MANY = Topology("stripes", 10**9)  # no loss: the bound of Kumar and Ross itself

rates = st.one_of(st.just(0.0), st.floats(1.0, 1e9))

links = st.lists(st.tuples(rates, rates), min_size=1, max_size=12)

topologies = st.sampled_from([Topology(shape) for shape in SHAPES])


def both(pairs: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    uploads, downloads = np.array(pairs).T
    return uploads, downloads


def rate_by_hand(source: float, uploads: np.ndarray, downloads: np.ndarray) -> float:
    """Return the best tree's rate by trying every rate at which a count of whole copies changes."""
    candidates = {float(downloads.min()), source}
    for upload in (*uploads, source):
        candidates |= {float(upload) / places for places in range(1, len(uploads) + 1)}
    good = [0.0]
    for rate in candidates:
        if 0 < rate <= min(source, downloads.min()):
            places = sum(math.floor(upload / rate * (1 + 1e-12)) for upload in (*uploads, source))
            if places >= len(uploads):
                good.append(rate)
    return max(good)


@pytest.mark.parametrize(
    ("source", "uploads", "downloads", "expected_s"),
    [
        (100.0, [10.0, 10.0], [1000.0, 1000.0], 2 * 1000 / 120),  # all uplinks together
        (10.0, [500.0, 500.0], [1000.0, 1000.0], 100.0),  # the source's uplink
        (1e6, [500.0, 500.0], [1000.0, 20.0], 50.0),  # the slowest downlink
    ],
)
def test_stripes_reach_the_bound_of_kumar_and_ross(
    source: float, uploads: list[float], downloads: list[float], expected_s: float
) -> None:
    found = broadcast_seconds(1000.0, source, np.array(uploads), np.array(downloads), MANY)
    assert found == pytest.approx(expected_s, rel=1e-6)


def test_a_number_of_stripes_costs_what_was_measured() -> None:
    assert [stripe_factor(Topology("stripes", stripes)) for stripes in (1, 4, 8, 16)] == [1.45, 1.13, 1.06, 1.03]
    assert stripe_factor(Topology("stripes", 6)) == pytest.approx((1.13 + 1.06 * 2) / 3, abs=0.02)
    assert {stripe_factor(Topology(shape)) for shape in ("tree", "chain", "star")} == {1.0}
    with pytest.raises(ValueError, match="at least 1"):
        stripe_factor(Topology("stripes", 0))


@pytest.mark.parametrize("stripes", [1, 2, 4, 8, 16])
def test_the_measured_loss_is_that_of_whole_copies(stripes: int) -> None:
    """Each node has half a place less than its uplink, of ``stripes`` places that each receiver needs."""
    assert stripe_factor(Topology("stripes", stripes)) == pytest.approx(1 + 1 / (2 * stripes), abs=0.051)


@given(st.floats(1.0, 1e9), links)
def test_a_tree_is_the_best_of_whole_copies(source: float, pairs: list[tuple[float, float]]) -> None:
    uploads, downloads = both(pairs)
    found = broadcast_rate(source, uploads, downloads, Topology("tree"))
    assert found == pytest.approx(rate_by_hand(source, uploads, downloads), rel=1e-9, abs=1e-6)


def test_a_tree_of_alike_links_loses_the_rest_of_a_copy() -> None:
    uploads, downloads = np.full(9, 2.5), np.full(9, 100.0)
    assert broadcast_rate(2.5, uploads, downloads, Topology("tree")) == 2.5  # a chain: one whole copy each
    source_places, places = tree_places(2.5, uploads, 2.5)
    assert source_places + places.sum() >= 9


def test_a_chain_has_its_slowest_link_and_puts_the_slowest_uplink_last() -> None:
    uploads, downloads = np.array([7.0, 0.0, 9.0]), np.array([50.0, 60.0, 70.0])
    assert broadcast_rate(100.0, uploads, downloads, Topology("chain")) == 7.0
    assert broadcast_rate(3.0, uploads, downloads, Topology("chain")) == 3.0
    assert broadcast_rate(100.0, np.zeros(2), np.ones(2), Topology("chain")) == 0.0


def test_a_star_shares_the_sources_uplink() -> None:
    downloads = np.array([50.0, 60.0, 70.0, 80.0])
    assert broadcast_rate(100.0, np.full(4, 1e9), downloads, Topology("star")) == 25.0
    assert broadcast_rate(1000.0, np.zeros(4), downloads, Topology("star")) == 50.0


@given(topologies, st.floats(0.0, 1e9), links, st.integers(0, 11), st.floats(1.0, 10.0))
def test_more_uplink_is_never_slower(
    topology: Topology, source: float, pairs: list[tuple[float, float]], which: int, factor: float
) -> None:
    uploads, downloads = both(pairs)
    before = broadcast_seconds(1e9, source, uploads, downloads, topology)
    more = uploads.copy()
    more[which % len(more)] *= factor
    assert broadcast_seconds(1e9, source, more, downloads, topology) <= before * (1 + 1e-9)
    assert broadcast_seconds(1e9, source * factor, uploads, downloads, topology) <= before * (1 + 1e-9)
    assert broadcast_seconds(1e9, source, uploads, downloads * factor, topology) <= before * (1 + 1e-9)


@given(topologies, st.floats(0.0, 1e9), links)
def test_no_shape_beats_the_bound(topology: Topology, source: float, pairs: list[tuple[float, float]]) -> None:
    uploads, downloads = both(pairs)
    bound = broadcast_rate(source, uploads, downloads, MANY)
    assert broadcast_rate(source, uploads, downloads, topology) <= bound * (1 + 1e-6)


@given(topologies, st.floats(1.0, 1e9), links, st.floats(1e-3, 1e3))
def test_the_unit_of_bytes_does_not_matter(
    topology: Topology, source: float, pairs: list[tuple[float, float]], unit: float
) -> None:
    uploads, downloads = both(pairs)
    seconds = broadcast_seconds(1e9, source, uploads, downloads, topology)
    scaled = broadcast_seconds(1e9 * unit, source * unit, uploads * unit, downloads * unit, topology)
    assert scaled == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_receivers_and_no_bytes_take_no_time(shape: Shape) -> None:
    none = np.zeros(0)
    assert broadcast_seconds(1e9, 10.0, none, none, Topology(shape)) == 0.0
    assert broadcast_seconds(0.0, 0.0, np.ones(1), np.ones(1), Topology(shape)) == 0.0
    assert broadcast_seconds(1.0, 0.0, np.ones(1), np.ones(1), Topology(shape)) == math.inf


def test_arguments_out_of_range_are_refused() -> None:
    one = np.ones(1)
    with pytest.raises(ValueError, match="update_bytes"):
        broadcast_seconds(-1.0, 1.0, one, one, Topology())
    with pytest.raises(ValueError, match="one figure per receiver"):
        broadcast_seconds(1.0, 1.0, one, np.ones(2), Topology())
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="negative or missing"):
            broadcast_seconds(1.0, 1.0, np.array([wrong]), one, Topology())
        with pytest.raises(ValueError, match="negative or missing"):
            broadcast_seconds(1.0, wrong, one, one, Topology())


def test_the_bound_is_that_of_kumar_and_ross_where_downlinks_suffice() -> None:
    unlimited = [math.inf] * 8
    assert fluid_rate(50.0, [50.0] * 8, unlimited) == 50.0  # the source
    assert fluid_rate(50.0, [50.0] * 4 + [12.5] * 4, unlimited) == (50 + 200 + 50) / 8  # all uplinks together
    assert fluid_rate(60.0, [100, 100, 60, 60, 30, 30, 10, 10], unlimited) == 57.5
    assert common_rate(60.0, 400.0, 8) == 57.5
    assert common_seconds(1000.0, 60.0, 400.0, 8) == pytest.approx(1000.0 / 57.5)


def test_slow_downlinks_take_what_they_can_and_leave_the_rest_to_others() -> None:
    assert fluid_rate(50.0, [0.0, 0.0, 0.0], [2.0, math.inf, math.inf]) == 24.0
    assert fluid_rate(50.0, [0.0, 0.0], [2.0, 3.0]) == 50.0  # more than any receiver takes


limited = st.lists(
    st.tuples(st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([1.0, 4.0, 9.0, math.inf])), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.1, 100.0), limited)
def test_a_level_spends_the_whole_budget(budget: float, limits: list[tuple[float, float]]) -> None:
    level = level_for(budget, limits)
    spent = sum(weight * min(level, limit) for weight, limit in limits)
    if level == math.inf:
        assert spent <= budget
    else:
        assert spent == pytest.approx(budget)


def test_shapes_are_written_as_people_give_them() -> None:
    assert str(Topology()) == "stripes=8"
    assert str(Topology("stripes", 4)) == "stripes=4"
    assert [str(Topology(shape)) for shape in ("tree", "chain", "star")] == ["tree", "chain", "star"]
