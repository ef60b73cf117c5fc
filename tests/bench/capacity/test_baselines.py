"""Test the planner's baselines: simple rules of choosing workers, and the widest path of a link graph."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.capacity.baselines import BASELINES, judged
from bench.capacity.region_links import ten_regions
from bench.capacity.widest_path import direct_seconds, relayed_seconds, widest_paths
from bench.planner.capacity_pools import demand as bench_demand
from bench.planner.capacity_pools import pool as bench_pool
from capacity.model.workers import Speed
from capacity.planner.columns import columns_of
from capacity.planner.planner import plan
from capacity.planner.plans import Split
from capacity.planner.programme import programme_of
from tests.capacity.planner.test_planner import demand, worker


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    nodes = draw(st.integers(2, 5))
    cells = draw(st.lists(st.integers(0, 9), min_size=nodes**2, max_size=nodes**2))
    return np.array(cells, float).reshape(nodes, nodes)


def widest_by_trying(links: np.ndarray, source: int, target: int) -> float:
    others = [node for node in range(len(links)) if node not in (source, target)]
    ways = (way for size in range(len(others) + 1) for way in itertools.permutations(others, size))
    return max(min(links[a, b] for a, b in itertools.pairwise((source, *way, target))) for way in ways)


@given(matrices())
def test_each_path_is_the_widest(links: np.ndarray) -> None:
    tree = widest_paths(links, 0)
    for node in range(1, len(links)):
        assert tree.bytes_per_second[node] == widest_by_trying(links, 0, node)
        width, at = math.inf, node
        for _ in range(len(links)):
            if tree.parents[at] in (at, -1):
                break
            width, at = min(width, links[tree.parents[at], at]), int(tree.parents[at])
        assert (at == 0 and width == tree.bytes_per_second[node]) or tree.bytes_per_second[node] == 0


@given(matrices(), st.integers(1, 9))
def test_relaying_and_wider_links_are_never_slower(links: np.ndarray, more: int) -> None:
    assert relayed_seconds(8.0, links, 0) <= direct_seconds(8.0, links, 0)
    assert relayed_seconds(8.0, links + more, 0) <= relayed_seconds(8.0, links, 0)


def test_golden_case() -> None:
    """Send 8.0 GB from Virginia: to Singapore directly, to Oceania and Asia by way of Ohio and Tokyo."""
    matrix = ten_regions()
    virginia = matrix.regions.index("Virginia")
    assert direct_seconds(8.0e9, matrix.bytes_per_second, virginia) == pytest.approx(176, abs=0.5)
    assert relayed_seconds(8.0e9, matrix.bytes_per_second, virginia) == pytest.approx(92, abs=0.5)
    tree = widest_paths(matrix.bytes_per_second, virginia)
    tokyo = matrix.regions.index("Tokyo")
    assert matrix.regions[tree.parents[tokyo]] == "Ohio"


def test_unreachable_regions_take_for_ever_and_no_regions_no_time() -> None:
    assert direct_seconds(1.0, np.zeros((2, 2)), 0) == math.inf
    assert relayed_seconds(1.0, np.zeros((2, 2)), 0) == math.inf
    assert widest_paths(np.zeros((2, 2)), 0).parents.tolist() == [0, -1]
    assert relayed_seconds(1.0, np.zeros((1, 1)), 0) == 0.0


@pytest.mark.parametrize(("links", "source"), [(np.ones((2, 3)), 0), (-np.ones((2, 2)), 0), (np.ones((2, 2)), 2)])
def test_nonsense_is_refused(links: np.ndarray, source: int) -> None:
    with pytest.raises(ValueError, match=r"square|source"):
        widest_paths(links, source)


def test_rules_pick_by_their_own_score() -> None:
    workers = [worker(number, usd_per_hour=1.0) for number in range(10)]
    workers += [worker(number + 10, usd_per_hour=1.5, speeds=(Speed(1, 2.5, 20.0),)) for number in range(3)]
    programme = programme_of(demand(), columns_of(demand(), workers), Split(20.0, 100.0))
    found = {name: judged(name, programme) for name in BASELINES}
    assert found["cheapest_first"].usd_per_hour == 5.0
    assert found["price_per_throughput"].usd_per_hour == 3.0
    assert found["multi_row_greedy"].usd_per_hour == 3.0
    assert all(result.feasible for result in found.values())


def test_plans_that_ignore_links_miss_the_broadcast_deadline() -> None:
    """Use the benchmark's pools with fewer workers."""
    wanted, workers = bench_demand(1024), bench_pool(1200, seed=3)
    made = plan(wanted, workers)
    programme = programme_of(wanted, columns_of(demand(), workers), made.split)
    found = {name: judged(name, programme) for name in BASELINES}
    assert made.feasible
    assert not found["cheapest_first"].feasible
    assert found["cheapest_first"].t_bcast_s > made.split.t_bcast_s
    assert found["multi_row_greedy"].feasible
    assert found["multi_row_greedy"].usd_per_hour >= made.usd_per_hour * (1 - 1e-9)


@pytest.mark.parametrize("name", BASELINES)
def test_an_impossible_programme_ends(name: str) -> None:
    programme = programme_of(demand(rollouts_per_step=10**6), columns_of(demand(), [worker(0)]), Split(20.0, 100.0))
    assert not judged(name, programme).feasible
