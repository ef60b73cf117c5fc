"""Divide the staleness budget ``(S - kappa) T_train`` between generating and broadcasting, and bound every division.

More time to generate lets each worker run more rollouts at once, so that it generates more; the shorter time left to
broadcast raises the rate at which every copy must travel. Between two p90s that some worker offers, a longer time to
generate gains nothing, so only these times matter. A large pool has tens of thousands of them, each with its own
programme, and none of them may be passed over without a proof. ``Cover`` is a branch and bound over intervals of them
(Land and Doig 1960): one relaxation with the longest time to generate of an interval *and* its longest time to
broadcast holds all that any split in it allows, so its bound is one for all of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from capacity.model.demand import Demand
from capacity.planner.columns import Columns, Floats
from capacity.planner.linear import Relaxation
from capacity.planner.plans import Split

PAUSING_TIMES = 64  # additional times to generate where a shorter broadcast gains something by itself
PAUSING_SHARE_MIN = 1e-3  # of the budget: the shortest of their times to broadcast


def times_of(demand: Demand, columns: Columns) -> Floats:
    """Return the seconds for generating that can matter, ascending; empty where no rollout is young enough.

    Workers that pause while they receive gain from a broadcast that leaves some of the budget unused, so for them times
    between the p90s are added.
    """
    times = columns.generation_times_s()
    if demand.update_bytes == 0:
        return times[times <= demand.budget_s]
    times = times[times < demand.budget_s]
    if not demand.pauses_while_receiving or not times.size:
        return times
    broadcasts_s = demand.budget_s * np.geomspace(PAUSING_SHARE_MIN, 1.0, PAUSING_TIMES)
    between = demand.budget_s - broadcasts_s
    return np.union1d(times, between[between > times[0]])


def split_at(demand: Demand, t_gen_s: float) -> Split:
    """Return the split with this time to generate."""
    return Split(t_gen_s, demand.broadcast_s(t_gen_s))


def splits_of(demand: Demand, columns: Columns, most: int) -> tuple[Split, ...]:
    """Return at most so many splits, spread over those that can matter, by rising time to generate."""
    times = times_of(demand, columns)
    if times.size == 0:
        return ()
    places = np.unique(np.linspace(0, times.size - 1, min(times.size, most)).round().astype(int))
    return tuple(split_at(demand, float(times[place])) for place in places)


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """Splits first to last, both included, and USD/h below which no set costs at any of them."""

    bound: float
    first: int
    last: int


#: Relaxes the splits first to last, as one programme that allows what any of them does; None: no set holds its rows.
Relax = Callable[[int, int, Relaxation | None], Relaxation | None]
#: USD/h below which no set of whole workers costs in the interval of a relaxation; 0 where that is not known.
IntegerBound = Callable[[Relaxation], float]


class Cover:
    """Intervals that together hold every split at which a set may exist, those of the smallest bound refined first.

    Args:
        times_s: the splits' times to generate, ascending, seconds.
        relax: solves the relaxation of an interval; its last argument is a relaxation nearby.
        most: relaxations after which intervals are no longer refined; their bounds stay bounds.
    """

    def __init__(self, times_s: Floats, relax: Relax, most: int) -> None:
        self.times_s = times_s
        self._relax, self._left = relax, most
        self._open: list[Interval] = []
        self._closed = math.inf
        self._relaxations: dict[tuple[int, int], Relaxation] = {}
        if times_s.size:
            self._add(0, times_s.size - 1, None, 0.0)

    @property
    def bound(self) -> float:
        """USD/h below which no set costs at any split; inf where none exists."""
        return min(self._open[0].bound if self._open else math.inf, self._closed)

    @property
    def open_intervals(self) -> tuple[Interval, ...]:
        """The intervals that were neither taken out nor proven to hold no set."""
        return tuple(self._open)

    def pop_lowest(self, integer_bound: IntegerBound | None = None, enough: float = math.inf) -> Interval | None:
        """Refine until the interval of the smallest bound is one split, and take it out; None where none is left.

        Once the relaxations are used up the interval may hold several splits. ``close`` must follow, or the bound
        would no longer be one.

        Args:
            integer_bound: a higher bound of an interval, which takes longer.
            enough: an interval whose integer bound is no smaller is closed without being refined.
        """
        while self._open:
            interval = heapq.heappop(self._open)
            near = self._relaxations.pop((interval.first, interval.last), None)
            if interval.first == interval.last or self._left <= 0:
                return interval
            if integer_bound is not None and near is not None and (bound := integer_bound(near)) >= enough:
                self.close(bound)
                continue
            middle = (interval.first + interval.last) // 2
            self._add(interval.first, middle, near, interval.bound)
            self._add(middle + 1, interval.last, near, interval.bound)
        return None

    def close(self, bound: float) -> None:
        """Record the bound of an interval that was taken out and needs no further work; inf if no set exists there."""
        self._closed = min(self._closed, bound)

    def _add(self, first: int, last: int, near: Relaxation | None, least: float) -> None:
        """Add an interval; ``least`` is the bound of the interval that holds it."""
        self._left -= 1
        relaxation = self._relax(first, last, near)
        if relaxation is not None:
            self._relaxations[first, last] = relaxation
            heapq.heappush(self._open, Interval(max(least, relaxation.bound), first, last))
