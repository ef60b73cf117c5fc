"""Compute the least time in which every node can hold a copy, with shared access links and local networks, by an LP.

Let c_ij be the bytes that node i sends to node j in a broadcast of M bytes, divided by its duration T. Whatever the
schedule, M bytes enter every set of nodes that lacks the source, so c carries a flow of M / T from the source to each
receiver (max-flow min-cut), and it keeps within each access link and each local interface. The largest common flow R
under these constraints therefore bounds T from below by M / R. The bound is exact in the fluid model: as all nodes are
receivers, trees of the total rate R fit into c (Edmonds, 1973, "Edge-disjoint branchings"). Without shared links it is
the bound of Kumar and Ross (capacity/model/broadcast_bound.py).

Averaging a solution over all exchanges of equal nodes gives a solution. So members of one site send alike, and so do
nodes alone behind equal links: the LP has variables for pairs of such classes, not for pairs of nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from bench.wan.scenarios import BITS_PER_BYTE, Node

_SOURCE = 0  # number of the source's class
_MEGA = 1e6


def delivery_bound_s(size_bytes: int, nodes: Sequence[Node], lan_mbit_s: float) -> float:
    """Return the seconds before which not all nodes can hold a version; infinity where some can never have it.

    Args:
        nodes: the source first. Those ``beside`` another one share its access link and its local network.
        lan_mbit_s: rate of each node's interface to its local network, in each direction.
    """
    rate = delivery_rate_mbit_s(nodes, lan_mbit_s)
    return size_bytes * BITS_PER_BYTE / _MEGA / rate if rate > 0 else math.inf


def delivery_rate_mbit_s(nodes: Sequence[Node], lan_mbit_s: float) -> float:
    """Return the largest rate, in Mbit/s, at which all nodes can receive the version at once."""
    if len(nodes) < 2:
        return math.inf
    return _Program(_classes(nodes), lan_mbit_s).solve()


@dataclass(frozen=True, slots=True)
class _Class:
    """Nodes that can be exchanged for each other.

    Args:
        link: number of the access link, or of the equal access links, that they are behind.
        up_mbit_s, down_mbit_s: of that link, or of these links together.
        site: whether they, and other classes of the same link, reach each other over a local network.
    """

    count: int
    link: int
    up_mbit_s: float
    down_mbit_s: float
    site: bool


def _classes(nodes: Sequence[Node]) -> list[_Class]:
    """Return the classes of nodes; the first one is the source alone."""
    behind = Counter(number if node.beside is None else node.beside for number, node in enumerate(nodes))
    source, members = nodes[0], behind.pop(0)
    found = [_Class(1, 0, source.up_mbit_s, source.down_mbit_s, members > 1)]
    if members > 1:
        found.append(_Class(members - 1, 0, source.up_mbit_s, source.down_mbit_s, site=True))
    alone = Counter(
        (nodes[number].up_mbit_s, nodes[number].down_mbit_s) for number, members in behind.items() if members == 1
    )
    for link, ((up, down), count) in enumerate(alone.items(), start=1):
        found.append(_Class(count, link, count * up, count * down, site=False))
    shared = ((nodes[number], members) for number, members in behind.items() if members > 1)
    for link, (head, members) in enumerate(shared, start=1 + len(alone)):
        found.append(_Class(members, link, head.up_mbit_s, head.down_mbit_s, site=True))
    return found


@dataclass
class _Rows:
    """Sums of coefficients times variables, each with the number on its other side."""

    terms: list[tuple[int, int, float]] = field(default_factory=list)  # row, variable, coefficient
    limits: list[float] = field(default_factory=list)

    def add(self, coefficients: Iterable[tuple[int, float]], limit: float) -> None:
        self.terms += [(len(self.limits), variable, coefficient) for variable, coefficient in coefficients]
        self.limits.append(limit)

    def matrix(self, variables: int) -> csr_matrix:
        rows, columns, values = zip(*self.terms, strict=True)
        return csr_matrix((values, (rows, columns)), shape=(len(self.limits), variables))


class _Program:
    """Maximise the rate (variable 0) over what classes send to each other and the flow to a receiver of each class."""

    def __init__(self, classes: Sequence[_Class], lan_mbit_s: float) -> None:
        self._classes = classes
        self._variables = 1
        self._most, self._equal = _Rows(), _Rows()
        self._sent = {
            (one, other): self._variable()
            for one, sender in enumerate(classes)
            for other in range(1, len(classes))
            if one != other or sender.count > 1
        }
        self._keep_within_access_links()
        self._keep_within_local_networks(lan_mbit_s)
        for receiver in range(1, len(classes)):
            self._reach(receiver)

    def solve(self) -> float:
        found = linprog(
            [-1.0] + [0.0] * (self._variables - 1),
            A_ub=self._most.matrix(self._variables),
            b_ub=self._most.limits,
            A_eq=self._equal.matrix(self._variables),
            b_eq=self._equal.limits,
            method="highs",
        )
        if not found.success:
            raise RuntimeError(f"the bound's linear program has no solution: {found.message}")
        return float(-found.fun)

    def _variable(self) -> int:
        self._variables += 1
        return self._variables - 1

    def _local(self, pair: tuple[int, int]) -> bool:
        one, other = (self._classes[number] for number in pair)
        return one.site and one.link == other.link

    def _keep_within_access_links(self) -> None:
        limits = {one.link: (one.up_mbit_s, one.down_mbit_s) for one in self._classes}
        outside = {pair: variable for pair, variable in self._sent.items() if not self._local(pair)}
        for link, directions in limits.items():
            for end, limit in enumerate(directions):
                through = (variable for pair, variable in outside.items() if self._classes[pair[end]].link == link)
                self._most.add(((variable, 1.0) for variable in through), limit)

    def _keep_within_local_networks(self, lan_mbit_s: float) -> None:
        inside = {pair: variable for pair, variable in self._sent.items() if self._local(pair)}
        for number, one in enumerate(self._classes):
            for end in (0, 1):
                through = (variable for pair, variable in inside.items() if pair[end] == number)
                self._most.add(((variable, 1.0) for variable in through), one.count * lan_mbit_s)

    def _reach(self, receiver: int) -> None:
        """Have a flow of the rate to one node of a class, which splits it into that node and the others.

        Flows among nodes of one class are left out: with all alike, they cancel.
        """
        count = self._classes[receiver].count
        others_share = (count - 1) / count
        relays = [number for number in range(len(self._classes)) if number != receiver or count > 1]
        between = {
            pair: self._flow(pair, others_share if receiver in pair else 1.0)
            for pair in self._sent
            if pair[0] != pair[1] and set(pair) <= set(relays)
        }
        last = {one: self._flow((one, receiver), 1 / count) for one in relays}
        self._equal.add([(0, -1.0), *((variable, 1.0) for variable in last.values())], 0.0)
        for relay in relays:
            if relay != _SOURCE:
                self._equal.add(_balance(relay, between, last[relay]), 0.0)

    def _flow(self, pair: tuple[int, int], share: float) -> int:
        """Return a new variable, which is at most a share of what one class sends to another."""
        variable = self._variable()
        self._most.add([(variable, 1.0), (self._sent[pair], -share)], 0.0)
        return variable


def _balance(relay: int, between: Mapping[tuple[int, int], int], to_receiver: int) -> Iterable[tuple[int, float]]:
    """Return what a relay receives minus what it sends."""
    yield from ((variable, 1.0) for pair, variable in between.items() if pair[1] == relay)
    yield from ((variable, -1.0) for pair, variable in between.items() if pair[0] == relay)
    yield to_receiver, -1.0
