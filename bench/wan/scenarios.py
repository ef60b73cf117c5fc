"""Define the links of every node in each scenario, and the physical limit of a broadcast there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from capacity.model.broadcast_bound import fluid_rate

BITS_PER_BYTE = 8
_MEGA = 1e6
BYTES_PER_MEGABIT = _MEGA / BITS_PER_BYTE


#: How a home's router translates addresses; bench/wan/nat.h has what each kind lets in.
Nat = Literal["full-cone", "port-restricted", "symmetric"]


@dataclass(frozen=True, slots=True)
class Node:
    """One access link. Rates count IP bytes; the round trip between i and j takes 2 (delay_i + delay_j)."""

    up_mbit_s: float
    down_mbit_s: float
    delay_ms: float  # one way, between the node and the middle of the network
    nat: Nat | None = None  # kind of the router in front of the node; None: no router
    beside: int | None = None  # number of the node whose router and access link it shares; its own rates do not count
    loss: float = 0.0  # share of the packets that it sends which are lost at random

    def scaled(self, factor: float) -> Node:
        """Return the same link with both rates multiplied."""
        return replace(self, up_mbit_s=self.up_mbit_s * factor, down_mbit_s=self.down_mbit_s * factor)

    def open(self) -> Node:
        """Return the same link without a router."""
        return replace(self, nat=None, beside=None)

    def with_uplink(self, up_mbit_s: float) -> Node:
        """Return the same link with another uplink rate."""
        return replace(self, up_mbit_s=up_mbit_s)


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time in which N full copies can be delivered, and which term of it binds."""

    seconds: float
    binding: str
    terms_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A disturbance of one node in the middle of a broadcast.

    Args:
        what: "dies": its process is killed; "slows": its uplink drops to a tenth; "joins": it is new.
        after_bounds: time of the event after the announcement, in multiples of the fluid bound.
    """

    what: Literal["dies", "slows", "joins"]
    node: int
    after_bounds: float = 0.5


SLOWED_TO = 0.1  # share of the uplink's rate that a slowed node keeps


def _alike(count: int, up_mbit_s: float, down_mbit_s: float, delay_ms: float = 10.0) -> tuple[Node, ...]:
    return (Node(up_mbit_s, down_mbit_s, delay_ms),) * count


_HOMO50 = _alike(9, 50, 100)
#: Fibre, cable, DSL and mobile lines. The source limits the fast homes, their own downlinks the four slowest.
_HOMES12 = (
    Node(20, 100, 10),
    Node(50, 100, 8),
    Node(50, 250, 12),
    Node(40, 100, 20),
    Node(20, 100, 15),
    Node(20, 250, 10),
    Node(10, 50, 20),
    Node(10, 100, 25),
    Node(5, 40, 30),
    Node(5, 16, 20),
    Node(2, 16, 35),
    Node(2, 12, 40),
    Node(1, 8, 45),
)
_ROUTERS: tuple[Nat, ...] = ("port-restricted", "symmetric", "full-cone", "port-restricted")

#: Name -> nodes; the first one is the source.
SCENARIOS: dict[str, tuple[Node, ...]] = {
    "homo50": _HOMO50,
    "het50": _alike(5, 50, 100) + _alike(4, 12.5, 100),
    # All three terms of the bound within 5 % of each other; round trips of 20 to 180 ms.
    "wan": (
        Node(60, 200, 5),
        Node(100, 200, 5),
        Node(100, 200, 15),
        Node(60, 120, 20),
        Node(60, 120, 30),
        Node(30, 100, 10),
        Node(30, 100, 40),
        Node(10, 60, 20),
        Node(10, 60, 50),
    ),
    "homes12": _HOMES12,
    "lossy": tuple(replace(node, loss=0.01) for node in _alike(9, 50, 100, 20.0)),
    # No emulated links: the rates are what the bound assumes, and the machine may carry more.
    "gigabit": (Node(1000, 1000, 0.0),) * 5,
    "die50": _HOMO50,
    "slow50": _HOMO50,
    "join50": _HOMO50,
    # Every second of 16 peers behind a router; small rates, because one machine runs 18 processes.
    "nat50": (
        Node(12, 24, 10),
        *(Node(12, 24, 10, _ROUTERS[number // 2 % 4] if number % 2 else None) for number in range(16)),
    ),
    # Homes: four kinds of lines, near and far. Small rates, because one machine runs 34 processes.
    "peers32": (
        Node(6, 24, 10),
        *(Node(6, 24, 10),) * 8,
        *(Node(4, 24, 20),) * 8,
        *(Node(2, 12, 30),) * 8,
        *(Node(1, 12, 40),) * 8,
    ),
}

#: Scenarios without an emulator, over the loopback interface.
ON_LOOPBACK = ("gigabit",)

#: Scenarios with routers. Each is compared with the same network without them.
BEHIND_NAT = tuple(name for name, nodes in SCENARIOS.items() if any(node.nat for node in nodes))

#: Scenarios with trouble half way. Each is compared with the same network without it.
TROUBLES: dict[str, Trouble] = {
    "die50": Trouble("dies", 4),
    "slow50": Trouble("slows", 4),
    "join50": Trouble("joins", 8),
}


def scenario(name: str, scale: float) -> tuple[Node, ...]:
    """Return the nodes of a scenario with all rates multiplied by ``scale``; delays stay.

    Raises:
        KeyError: there is no such scenario.
    """
    return tuple(node.scaled(scale) for node in SCENARIOS[name])


def fluid_bound(size_bytes: int, nodes: Sequence[Node]) -> Bound:
    """Return max(M/u_0, M/min d_i, N M/(u_0 + sum u_i)) (Kumar & Ross, 2006, "Peer-assisted file distribution").

    Nodes that share an access link count as one: a copy must come through it, and inside the site it costs nothing.
    """
    source, *peers = (node for node in nodes if node.beside is None)
    megabits = size_bytes * BITS_PER_BYTE / _MEGA
    terms_s = {
        "source": megabits / source.up_mbit_s,
        "downlink": megabits / min(peer.down_mbit_s for peer in peers),
        "uplinks": len(peers) * megabits / (source.up_mbit_s + sum(peer.up_mbit_s for peer in peers)),
    }
    binding = max(terms_s, key=lambda name: terms_s[name])
    return Bound(terms_s[binding], binding, terms_s)


def own_bounds_s(size_bytes: int, nodes: Sequence[Node]) -> dict[int, float]:
    """Return each receiver's own bound in seconds: the copy at its downlink's rate, or at the rate of the fluid bound.

    The rate of the fluid bound is the largest one that all receivers can have at once where those with slower downlinks
    take only what these carry. So a slow receiver is no excuse for the others. Nodes that share an access link have its
    bound.
    """
    megabits = size_bytes * BITS_PER_BYTE / _MEGA
    source, *peers = (node for node in nodes if node.beside is None)
    rate = fluid_rate(source.up_mbit_s, [one.up_mbit_s for one in peers], [one.down_mbit_s for one in peers])
    links = (one if one.beside is None else nodes[one.beside] for one in nodes[1:])
    return {number: megabits / min(rate, one.down_mbit_s) for number, one in enumerate(links, start=1)}


def site_of(number: int, nodes: Sequence[Node]) -> int | None:
    """Return the node whose access link this one shares, which may be itself; None if it shares none."""
    beside = nodes[number].beside
    if beside is not None:
        return beside
    return number if any(node.beside == number for node in nodes) else None
