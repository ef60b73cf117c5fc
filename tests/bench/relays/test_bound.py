"""Test the bound of a broadcast with shared access links against closed forms, and against all trees of few nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog

from bench.relays.bound import delivery_bound_s, delivery_rate_mbit_s
from bench.relays.simulated import SIMULATED
from bench.wan.scenarios import SCENARIOS, Node, fluid_bound

LAN_MBIT_S = 1000.0
MB = 1_000_000


@pytest.mark.parametrize("name", ["homo50", "het50", "wan", "homes12", "peers32", "gigabit"])
def test_without_shared_links_it_is_the_bound_of_kumar_and_ross(name: str) -> None:
    nodes = SCENARIOS[name]
    assert delivery_bound_s(MB, nodes, LAN_MBIT_S) == pytest.approx(fluid_bound(MB, nodes).seconds, rel=1e-6)


@pytest.mark.parametrize("name", SIMULATED)
def test_it_is_never_below_the_fluid_bound(name: str) -> None:
    nodes = SIMULATED[name].nodes
    for lan_mbit_s in (2.0, 1000.0):
        assert delivery_bound_s(MB, nodes, lan_mbit_s) >= fluid_bound(MB, nodes).seconds * (1 - 1e-6)


@pytest.mark.parametrize(
    ("members", "lan_mbit_s", "rate"),
    [
        (2, 1000.0, 10.0),  # one copy comes in at the access link's rate
        (2, 2.0, 7.0),  # each member gets half of the access link, and 2 from the other member
        (4, 5.0, 7.5),  # a quarter, and 5 from the others
        (4, 0.0, 2.5),
    ],
)
def test_a_site_is_bound_by_its_downlink_or_by_its_share_and_its_local_network(
    members: int, lan_mbit_s: float, rate: float
) -> None:
    nodes = [Node(100, 100, 0), Node(3, 10, 0), *(Node(3, 10, 0, beside=1),) * (members - 1)]
    assert delivery_rate_mbit_s(nodes, lan_mbit_s) == pytest.approx(rate)


def test_a_site_sends_to_others_no_more_than_its_access_link_carries() -> None:
    """The source's 20 and the shared 4 serve two copies, however many members the site has."""
    nodes = [Node(20, 100, 0), Node(4, 100, 0), *(Node(4, 100, 0, beside=1),) * 5, Node(0, 100, 0)]
    assert delivery_rate_mbit_s(nodes, LAN_MBIT_S) == pytest.approx(12.0)


def test_peers_beside_the_source_do_not_burden_its_access_link() -> None:
    nodes = [Node(6, 6, 0), *(Node(6, 6, 0, beside=0),) * 2, Node(9, 100, 0)]
    assert delivery_rate_mbit_s(nodes, LAN_MBIT_S) == pytest.approx(6.0)
    assert delivery_rate_mbit_s(nodes[:3], 8.0) == pytest.approx(8.0)


def test_a_node_that_nothing_reaches_has_no_bound() -> None:
    assert delivery_bound_s(MB, [Node(10, 10, 0), Node(10, 0, 0)], LAN_MBIT_S) == math.inf


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_rate_of_the_best_packing_of_trees(seed: int) -> None:
    chance = Random(seed)
    nodes = [Node(chance.randint(1, 12), chance.randint(1, 12), 0) for _ in range(5)]
    for number in range(1, 5):
        heads = [one for one in range(number) if nodes[one].beside is None]
        if chance.random() < 0.5:
            nodes[number] = Node(1, 1, 0, beside=chance.choice(heads))
    if seed % 3 == 0:  # equal nodes, each behind a link of its own
        nodes[3] = nodes[4] = Node(chance.randint(1, 12), chance.randint(1, 12), 0)
    lan_mbit_s = chance.choice((1.0, 3.0, 20.0))
    assert delivery_rate_mbit_s(nodes, lan_mbit_s) == pytest.approx(_best_packing(nodes, lan_mbit_s), rel=1e-6)


def _best_packing(nodes: Sequence[Node], lan_mbit_s: float) -> float:
    """Return the largest total rate of trees from the source to all nodes that the links carry together."""
    trees = [parents for parents in product(range(len(nodes)), repeat=len(nodes) - 1) if _is_tree(parents)]
    link = [number if node.beside is None else node.beside for number, node in enumerate(nodes)]
    used = np.zeros((4 * len(nodes), len(trees)))  # access links' uplinks and downlinks, then those of local networks
    for column, parents in enumerate(trees):
        for child, parent in enumerate(parents, start=1):
            ends, first = ((parent, child), 2) if link[parent] == link[child] else ((link[parent], link[child]), 0)
            for direction, place in enumerate(ends):
                used[(first + direction) * len(nodes) + place, column] += 1.0
    limits = [one.up_mbit_s for one in nodes] + [one.down_mbit_s for one in nodes] + [lan_mbit_s] * (2 * len(nodes))
    return float(-linprog(-np.ones(len(trees)), A_ub=used, b_ub=limits, method="highs").fun)


def _is_tree(parents: Sequence[int]) -> bool:
    """Return whether every node leads to the source; ``parents`` begins with that of node 1."""
    for start in range(1, len(parents) + 1):
        place = start
        for _ in parents:
            place = parents[place - 1] if place else 0
        if place:
            return False
    return True
