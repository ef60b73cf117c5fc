"""Find single changes that would make a set feasible, each as small as possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from capacity.model.demand import Demand, with_link
from capacity.model.topologies import Topology
from capacity.model.units import bandwidth
from capacity.planner.columns import Columns

Knob = Literal["S", "kappa", "uplink", "topology", "deltas", "workers", "budget"]

TOPOLOGIES = (Topology("stripes", 8), Topology("stripes", 16), Topology("tree"), Topology("star"), Topology("chain"))
S_MAX = 256  # most additional steps that are tried
FACTOR_MAX = 4096.0  # largest factor on an uplink or on the bytes of a version
WORKERS_MAX = 4096
PRECISION = 1.02  # relative, of a factor: the answer is at most 2 % larger than necessary


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that makes a set feasible.

    Args:
        change: the change in words: "4 -> 5".
        size: its size as a share of the present value; 0 for a change of shape.
        demand, columns: the demand and the pool after the change.
    """

    knob: Knob
    change: str
    size: float
    demand: Demand
    columns: Columns

    def __str__(self) -> str:
        return f"{self.knob}: {self.change}"


Possible = Callable[[Demand, Columns], bool]


def remedies_of(demand: Demand, columns: Columns, possible: Possible) -> tuple[Remedy, ...]:
    """Return every single change that helps, the smallest first.

    Args:
        possible: whether some set holds all rows.
    """
    found = [
        _staleness(demand, columns, possible),
        _publishing(demand, columns, possible),
        _uplink(demand, columns, possible),
        _topology(demand, columns, possible),
        _deltas(demand, columns, possible),
        _workers(demand, columns, possible),
    ]
    return tuple(sorted((remedy for remedy in found if remedy is not None), key=lambda remedy: remedy.size))


def _staleness(demand: Demand, columns: Columns, possible: Possible) -> Remedy | None:
    def at(more: int) -> Demand:
        return replace(demand, staleness_limit=demand.staleness_limit + more)

    more = smallest_whole(lambda number: possible(at(number), columns), S_MAX)
    if more is None:
        return None
    change = f"{demand.staleness_limit} -> {demand.staleness_limit + more}"
    return Remedy("S", change, more / max(1, demand.staleness_limit), at(more), columns)


def _publishing(demand: Demand, columns: Columns, possible: Possible) -> Remedy | None:
    now = demand.publish_every_steps
    others = [steps for steps in range(1, max(2, demand.staleness_limit)) if steps != now]
    for steps in sorted(others, key=lambda steps: abs(steps - now)):
        changed = replace(demand, publish_every_steps=steps)
        if possible(changed, columns):
            return Remedy("kappa", f"{now} -> {steps}", abs(steps - now) / now, changed, columns)
    return None


def _uplink(demand: Demand, columns: Columns, possible: Possible) -> Remedy | None:
    now = demand.learner_upload_bytes_per_second

    def at(factor: float) -> Demand:
        return with_link(demand, learner_upload_bytes_per_second=now * factor)

    factor = smallest_factor(lambda factor: possible(at(factor), columns))
    if factor is None or now <= 0:
        return None
    change = f"{bandwidth(now)} -> {bandwidth(now * factor)}"
    return Remedy("uplink", change, factor - 1.0, at(factor), columns)


def _topology(demand: Demand, columns: Columns, possible: Possible) -> Remedy | None:
    for topology in TOPOLOGIES:
        changed = replace(demand, topology=topology)
        if str(topology) != str(demand.topology) and possible(changed, columns):
            return Remedy("topology", f"{demand.topology} -> {topology}", 0.0, changed, columns)
    return None


def _deltas(demand: Demand, columns: Columns, possible: Possible) -> Remedy | None:
    now = demand.update_bytes

    def at(factor: float) -> Demand:
        return with_link(demand, update_bytes=now / factor)

    factor = smallest_factor(lambda factor: possible(at(factor), columns))
    if factor is None or now <= 0:
        return None
    change = f"versions of {now / factor / 1e6:.4g} MB in place of {now / 1e6:.4g} MB ({1 / factor:.1%} of the bytes)"
    return Remedy("deltas", change, factor - 1.0, at(factor), columns)


def _workers(demand: Demand, columns: Columns, possible: Possible) -> Remedy | None:
    """Add workers of one kind: the fastest, or the fast one with the best uplink, whichever needs fewer."""
    fastest = columns.option_rate.max(axis=1)[columns.kind] * columns.kept
    found: list[tuple[int, int]] = []
    for place in {int(fastest.argmax()), int((columns.upload * fastest).argmax())} if len(columns) else ():

        def enough(number: int, place: int = place) -> bool:
            return possible(demand, columns.with_copies(place, number))

        number = smallest_whole(enough, min((number for number, _ in found), default=WORKERS_MAX))
        if number is not None:
            found.append((number, place))
    if not found:
        return None
    number, place = min(found)
    model = columns.workers[place]
    change = f"{number} more like {model.worker_id}" + (f" ({model.hardware})" if model.hardware else "")
    return Remedy("workers", change, number / len(columns), demand, columns.with_copies(place, number))


def smallest_whole(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 1 for which a monotone test holds; None if it does not hold for ``most``."""
    if not holds(most):
        return None
    high = 1
    while not holds(high):
        high = min(most, high * 2)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def smallest_factor(holds: Callable[[float], bool]) -> float | None:
    """Return the smallest factor above 1 for which the test holds, within ``PRECISION``; None if the largest fails."""
    if not holds(FACTOR_MAX):
        return None
    low, high = 0.0, math.log(FACTOR_MAX)
    while high - low > math.log(PRECISION):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)
