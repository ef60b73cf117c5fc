"""Measure how long relay plans for many peers take to compute, and how close they come to the fluid bound.

The pool is synthetic: cable and fibre homes, labs, rented machines and metered mobile links in the shares below, each
rate with a log-normal spread, in five regions. ``seconds`` is the time on one core from measurements to every peer's
part of the plan, the median of several fresh plans; ``bound_ratio`` is the bound of Kumar and Ross / what the plan
sustains in the fluid model, where receivers with slower downlinks take what they can in both.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from bench.broadcast.plan_rate import depth_of, plan_rate
from bench.machine import Outcome
from capacity.model.broadcast_bound import fluid_rate
from coordinator.core.broadcast.nodes import Plan, RelayNode
from coordinator.core.broadcast.planner import PlanShape, RelayPlanner
from coordinator.core.events.actions import SendPlan
from coordinator.core.flight_format import checksum
from coordinator.core.reach.holes import OUTWARDS, RESTRICTED
from coordinator.relays.packing import ProblemReader, SolutionReader, pack_problem, pack_solution
from rollcast.runtime.process import collect_garbage_in_small_steps
from rollcast.wire.ids import PeerId
from rollcast.wire.links.frames import DIRECT_STRIPE

T = TypeVar("T")

MBIT = 1e6 / 8
ORIGIN_MBIT_S = 1000.0
SPREAD = 0.5  # sigma of the logarithm of a rate within its kind
REGIONS = 5
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """Peers of one kind: their share of the pool, median rates in Mbit/s, and how many can be dialled."""

    share: float
    up_mbit_s: float
    down_mbit_s: float
    dialable_share: float
    metered: bool = False


KINDS = (
    Kind(0.55, 20, 300, 0.4),  # cable
    Kind(0.25, 100, 400, 0.4),  # fibre
    Kind(0.12, 200, 500, 0.95),  # labs
    Kind(0.05, 400, 1000, 1.0),  # rented machines
    Kind(0.03, 10, 50, 0.0, metered=True),  # mobile
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=int, default=10_000)
    parser.add_argument("--stripes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--punching", type=float, default=0.0, help="share of peers behind NAT that can punch holes")


def run(arguments: argparse.Namespace) -> Outcome:
    nodes = pool(arguments.peers, arguments.seed, arguments.punching)
    shape = PlanShape(stripes=arguments.stripes)
    times_s = []
    for _ in range(REPEATS):
        planner = RelayPlanner(shape)
        times_s.append(_timed_replan(planner, nodes)[0])
    fresh = planner.plan
    assert fresh is not None
    planner.validate()
    figures = {"seconds": median(times_s)} | _quality(fresh, nodes)
    figures["leave_seconds"], figures["leave_parts_sent"] = _timed_replan(planner, nodes[:-1])
    figures["join_seconds"], figures["join_parts_sent"] = _timed_replan(planner, nodes)
    figures |= _beside(shape, nodes)
    settings = {name: getattr(arguments, name) for name in ("peers", "stripes", "seed", "punching")}
    return Outcome(settings, figures)


def pool(peers: int, seed: int, punching: float = 0.0) -> list[RelayNode]:
    """Return the origin and then ``peers`` peers, every uplink measured; ``punching`` as the option of that name."""
    rng, holes = random.Random(seed), random.Random(seed + 1)
    nodes = [RelayNode(PeerId("origin"), "origin", "origin:1", True, ORIGIN_MBIT_S * MBIT)]
    for kind, number in zip(rng.choices(KINDS, [kind.share for kind in KINDS], k=peers), range(peers), strict=True):
        nodes.append(
            RelayNode(
                peer_id=PeerId(f"peer-{number}"),
                role="peer",
                address=f"peer-{number}:1" if rng.random() < kind.dialable_share else "",
                may_relay=True,
                uplink_bytes_per_second=kind.up_mbit_s * MBIT * rng.lognormvariate(0, SPREAD),
                downlink_bytes_per_second=kind.down_mbit_s * MBIT * rng.lognormvariate(0, SPREAD),
                metered=kind.metered,
                region=f"region-{rng.randrange(REGIONS)}",
                hole=RESTRICTED if holes.random() < punching else OUTWARDS,
            )
        )
    return nodes


def _timed_replan(planner: RelayPlanner, nodes: list[RelayNode]) -> tuple[float, float]:
    """Return the seconds on one core that a fresh plan took, and the number of assignments that were sent."""
    started_s = time.process_time()
    sent, present = planner.replan(nodes), {node.peer_id for node in nodes}
    while planner.has_unsent:
        sent += planner.hand_over(present)
    return time.process_time() - started_s, float(len(sent))


def _beside(shape: PlanShape, nodes: list[RelayNode]) -> dict[str, float]:
    """Return the seconds on one core that stay with the event loop when another process solves the plans.

    ``loop_first_seconds``: of a first plan, of which every assignment is new; ``loop_seconds``: after a member left.
    ``loop_turn_ms_max``: the longest turn, besides reading the members' rates; the flight record of a turn counts.
    Garbage is collected as in a coordinator.
    """
    gc.freeze()
    collect_garbage_in_small_steps()
    planner, there, turns = RelayPlanner(shape), ProblemReader(shape), _Turns()
    figures, newest = dict[str, float](), None
    for name, members in (("loop_first_seconds", nodes), ("loop_seconds", nodes[:-1])):
        before_s = sum(turns.took_s)
        problem = turns.run(planner.problem, members, beside=True)
        assert problem is not None
        solved, packed = None, pack_problem(problem, continues=newest is not None)
        while (data := turns.run(next, packed, None)) is not None:
            solved = there.take(data, newest)
        assert solved is not None
        newest, reader, found = solved.solve(), SolutionReader(problem, problem.before), None
        for message in pack_solution(solved):
            found = turns.run(reader.take, message)
        assert found is not None
        problem.solved(found)
        present = {node.peer_id for node in members}
        turns.run(_recorded, planner.take, problem, present)
        while planner.has_unsent:
            turns.run(_recorded, planner.hand_over, present)
        figures[name] = sum(turns.took_s) - before_s
    return figures | {"loop_turn_ms_max": 1e3 * max(turns.took_s)}


def _recorded(hand_over: Callable[..., list[SendPlan]], *arguments: Any) -> None:
    checksum(hand_over(*arguments))


class _Turns:
    """Measures what would be turns of the event loop, in seconds on one core."""

    def __init__(self) -> None:
        self.took_s: list[float] = []

    def run(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        began_s = time.process_time()
        result = work(*arguments, **named)
        self.took_s.append(time.process_time() - began_s)
        return result


def _quality(plan: Plan, nodes: list[RelayNode]) -> dict[str, float]:
    uplinks = {node.peer_id: node.uplink_bytes_per_second or 0.0 for node in nodes}
    downlinks = {node.peer_id: node.downlink_bytes_per_second or 0.0 for node in nodes[1:]}
    bound = fluid_rate(uplinks[plan.root], [uplinks[one] for one in downlinks], list(downlinks.values()))
    sustained = plan_rate(plan, uplinks, downlinks)
    trees = [stripe.parents for stripe in plan.stripes if stripe.stripe != DIRECT_STRIPE]
    copies = [Counter(parents.values()) for parents in trees]
    interior = Counter(parent for own in copies for parent in own if parent != plan.root)
    return {
        "bound_ratio": bound / sustained,
        "bound_mbit_s": bound / MBIT,
        "sustained_mbit_s": sustained / MBIT,
        "depth_max": max((depth_of(parents, plan.root) for parents in trees), default=1),
        "degree_max": max((count for own in copies for count in own.values()), default=len(downlinks)),
        "relays": len(interior),
        "stripes_interior_max": max(interior.values(), default=0),
        "slow_downlinks": sum(rate < bound for rate in downlinks.values()),
    }
