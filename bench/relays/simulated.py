"""Simulate the scenarios that need more peers, or other links, than one machine can emulate: real cores and planner.

Each run has a seed of its own, which decides the phases of clocks, where peers begin to request, and which relays have
trouble. Figures are medians over the runs. The wire is a model (rollcast/sim/kernel/bandwidth.py): nothing is lost, and
processors and disks cost no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median

from bench.relays.network import broadcast, late_in
from bench.relays.planned import CoordinatorPlans
from bench.relays.story import Fault, Join, Kill, Result, SetRates
from bench.wan.scenarios import BYTES_PER_MEGABIT, SCENARIOS, SLOWED_TO, Node, own_bounds_s, site_of
from peer.relay.core.state.relay_state import RelaySettings

_CHUNK_BYTES = 32 << 10
_AT_SHARE = 0.3  # of the time that the fastest receivers need, after which trouble begins
_TROUBLED = 5
_JOINS_AFTER = 3.0  # times what the fastest receivers need
_SETTINGS = RelaySettings("peer")

Troubles = Callable[[Sequence[Node], float, Random], list[Fault]]


@dataclass(frozen=True, slots=True)
class Simulated:
    """A scenario: its nodes, of which the first is the source.

    Args:
        mib: default size of a version.
        faults: given the nodes, the own bound of the fastest receivers in seconds, and randomness, what happens.
        chunk_bytes: size of its chunks: those of a version of gigabytes have 1 MiB.
    """

    nodes: tuple[Node, ...]
    mib: float
    faults: Troubles = lambda _nodes, _fastest_s, _chance: []
    chunk_bytes: int = _CHUNK_BYTES


def _unequal(peers: int) -> tuple[Node, ...]:
    """Return a source and peers with three kinds of uplinks, at four distances."""
    links = (Node((50, 30, 12)[place % 3], 100, 5 + 5 * (place // 3 % 4)) for place in range(peers))
    return (Node(50, 200, 10), *links)


def _strongest(nodes: Sequence[Node], chance: Random) -> list[int]:
    """Return some of the peers with the fastest uplinks."""
    fastest = max(node.up_mbit_s for node in nodes[1:])
    return chance.sample(
        [number for number, node in enumerate(nodes) if number and node.up_mbit_s == fastest], _TROUBLED
    )


def _slow_down(nodes: Sequence[Node], fastest_s: float, chance: Random) -> list[Fault]:
    at_s = _AT_SHARE * fastest_s
    return [
        SetRates(at_s, number, nodes[number].up_mbit_s * SLOWED_TO, nodes[number].down_mbit_s)
        for number in _strongest(nodes, chance)
    ]


def _die_unseen(nodes: Sequence[Node], fastest_s: float, chance: Random) -> list[Fault]:
    return [Kill(_AT_SHARE * fastest_s, number, silent=True) for number in _strongest(nodes, chance)]


def _churn(nodes: Sequence[Node], fastest_s: float, _chance: Random) -> list[Fault]:
    """Two of the strongest relays die, and the last node joins."""
    at_s = _AT_SHARE * fastest_s
    return [Kill(at_s, 1), Kill(2 * at_s, 3), Join(at_s, len(nodes) - 1)]


def _join_late(nodes: Sequence[Node], fastest_s: float, _chance: Random) -> list[Fault]:
    """The last node joins when all others have their copies."""
    return [Join(_JOINS_AFTER * fastest_s, len(nodes) - 1)]


_FAR, _NEAR = Node(40, 100, 40), Node(40, 100, 1)
_SITE = Node(100, 100, 10)
_SITE8 = (
    Node(50, 100, 10),
    _SITE,
    *(Node(_SITE.up_mbit_s, _SITE.down_mbit_s, _SITE.delay_ms, beside=1),) * 7,
    Node(50, 100, 10),
    Node(20, 100, 20),
    Node(20, 100, 30),
)

#: Name -> scenario.
SIMULATED = {
    "homes12-clean": Simulated(SCENARIOS["homes12"], 32.0),
    "homes12-churn": Simulated((*SCENARIOS["homes12"], Node(40, 100, 15)), 32.0, _churn),
    "homes12-large": Simulated(SCENARIOS["homes12"], 64.0, chunk_bytes=128 << 10),
    "site8": Simulated(_SITE8, 32.0),
    "wan-large": Simulated(SCENARIOS["wan"], 768.0, chunk_bytes=1 << 20),
    # Eight peers and the source are 41 ms and more from the one that joins, eight others 4 ms.
    "join-near": Simulated((replace(_FAR, up_mbit_s=50), *(_FAR,) * 8, *(_NEAR,) * 9), 64.0, _join_late),
    "trees60": Simulated(_unequal(60), 16.0),
    "trees60-slow": Simulated(_unequal(60), 16.0, _slow_down),
    "trees60-dying": Simulated(_unequal(60), 16.0, _die_unseen),
    "trees256": Simulated(_unequal(256), 16.0),
}


def run(name: str, size_bytes: int, runs: int, scale: float, told: Callable[[str], None]) -> dict[str, float]:
    """Return the figures of one scenario: medians over ``runs`` seeds, except for what is called ``max``.

    ``bound_s`` is the least time in which all nodes can have a copy (bench/relays/bound.py), and ``ratio_median`` and
    ``ratio_max`` are of the last receiver's time / it. ``worst_own_ratio`` and ``median_own_ratio`` are of each
    receiver's time / its own bound; ``peer_N_own_ratio`` is given for every receiver with a slower downlink than the
    broadcast's rate. ``site_copies`` is the copies that came through a shared access link. Of a node that joins,
    ``joined_ratio`` is its time / what its downlink needs, and ``joined_near_share`` the share of its bytes that came
    from the nodes with the shortest round trip to it.

    Args:
        told: receives a line for each run.
    """
    case = SIMULATED[name]
    nodes = tuple(node.scaled(scale) for node in case.nodes)
    results = [_simulate(nodes, size_bytes, case, seed) for seed in range(runs)]
    ratios = [result.own_ratios(size_bytes) for result in results]
    for result, own in zip(results, ratios, strict=True):
        told(_line(result, own))
    figures = {
        "ratio_median": median(result.ratio for result in results),
        "ratio_max": max(result.ratio for result in results),
        "t_bcast_median_s": median(result.last_s for result in results),
        "bound_s": results[0].bound_s,
        "worst_own_ratio": median(max(own.values()) for own in ratios),
        "median_own_ratio": median(median(own.values()) for own in ratios),
        "source_bytes_ratio": median(result.source_bytes_ratio for result in results),
        "runs": runs,
    }
    if any(site_of(number, nodes) is not None for number in range(len(nodes))):
        figures["site_copies"] = median(result.site_copies for result in results)
    for number in late_in(case.faults(nodes, 1.0, Random(0))):  # who joins depends on neither times nor chance
        figures |= _joined(number, results, size_bytes)
    return figures | _slow_receivers(nodes, ratios)


def _simulate(nodes: Sequence[Node], size_bytes: int, case: Simulated, seed: int) -> Result:
    fastest_s = min(own_bounds_s(size_bytes, nodes).values())
    return broadcast(
        nodes,
        size_bytes,
        case.chunk_bytes,
        _SETTINGS,
        case.faults(nodes, fastest_s, Random(seed)),
        plan=CoordinatorPlans(nodes),
        warm_up=False,
        seed=seed,
    )


def _joined(number: int, results: Sequence[Result], size_bytes: int) -> dict[str, float]:
    """Return the figures of a node that joined."""
    nodes = results[0].nodes
    needs_s = size_bytes / (nodes[number].down_mbit_s * BYTES_PER_MEGABIT)
    others = [other for other in range(len(nodes)) if other != number]
    least_ms = min(nodes[other].delay_ms for other in others)
    near = [other for other in others if nodes[other].delay_ms == least_ms]
    ratios, shares = list[float](), list[float]()
    for result in results:
        ratios.append((result.seconds[number] or math.inf) / needs_s)
        came = {other: result.sent_bytes.get((other, number), 0) for other in others}
        shares.append(sum(came[other] for other in near) / max(1, sum(came.values())))
    return {"joined_ratio": median(ratios), "joined_near_share": median(shares)}


def _slow_receivers(nodes: Sequence[Node], ratios: Sequence[Mapping[int, float]]) -> dict[str, float]:
    """Return the ratio of each receiver whose downlink is slower than the source's uplink."""
    slow = [number for number in sorted(ratios[0]) if nodes[number].down_mbit_s < nodes[0].up_mbit_s]
    return {f"peer_{number}_own_ratio": median(own[number] for own in ratios) for number in slow}


def _line(result: Result, own: Mapping[int, float]) -> str:
    """Format one run for a person to read: the time of all, then each receiver's time / its own bound."""
    by_node = " ".join(f"{own[number]:.2f}" for number in sorted(own))
    return (
        f"{result.last_s:.2f} s = {result.ratio:.3f} x bound, source sent {result.source_bytes_ratio:.2f} x; "
        f"each receiver / its own bound: {by_node}"
    )
