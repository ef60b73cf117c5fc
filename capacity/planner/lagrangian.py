"""Solve the relaxation of a split by its two prices: of a rollout a second, and of a copy of every version.

Without rows for regions and chance the programme has one row for the rate and one for the relays. At a price ``p`` of a
copy, a worker costs ``d = c + p - f max(0, p - k)``: its own price, the copy that it takes, and what it earns with the
``f`` copies that it passes on, each of which costs ``k`` of egress. What is left is a continuous knapsack: the workers
of the least ``d`` per rollout, as many as the rate needs (Dantzig 1957). Its optimum is concave and piecewise linear in
``p``, and the copies that its solution lacks are the slope. The largest value, where two tangents meet, is the optimum
of the relaxation (Geoffrion, "Lagrangean relaxation for integer programming", 1974). That takes about ten knapsacks,
each one sort, where a general solver takes several times as long for tables that the next split does not share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capacity.planner.columns import Floats, Ints
from capacity.planner.programme import TOLERANCE, Programme

TANGENTS_MAX = 200  # a dozen suffice; each gives a bound
GROWTH = 4.0  # factor on the price of a copy until no copy is missing
GROWTHS_MAX = 60


@dataclass(frozen=True, slots=True)
class Prices:
    """USD/h of one more rollout a second, and of one more copy of every version. Both are at least 0."""

    rate: float
    copy: float


@dataclass(frozen=True, slots=True, eq=False)
class _Tangent:
    """The value at one price of a copy, in USD/h, and its slope: the copies that no sender gives there."""

    prices: Prices
    value: float
    slope: float

    def at(self, copy_usd: float) -> float:
        return self.value + self.slope * (copy_usd - self.prices.copy)

    def crossing(self, other: _Tangent) -> float:
        """Return the price of a copy at which two tangents of different slopes meet."""
        return (other.at(0.0) - self.at(0.0)) / (self.slope - other.slope)


class Knapsacks:
    """The knapsacks of some workers of a programme, for any price of a copy.

    Args:
        places: the workers, shape [m]; all of them are eligible, and together they reach the rate.
    """

    def __init__(self, programme: Programme, places: Ints) -> None:
        self._programme = programme
        self._useful, self._feeds = programme.useful[places], programme.feeds[places]
        self._cost, self._pinned = programme.cost[places], programme.lower[places] > 0
        self._egress = programme.level_copy_usd[programme.columns.level[places]]

    @property
    def fewest_copies(self) -> float:
        """Return the copies that at least must come from the origin, whatever the workers cost."""
        taken = 1.0 - self._feeds
        x, _ = self._filled(taken)
        return float(x @ taken)

    def tangent(self, copy_usd: float) -> _Tangent:
        """Return the value and its slope at this price of a copy."""
        programme = self._programme
        sends = copy_usd >= self._egress
        cost = self._cost + copy_usd - self._feeds * np.where(sends, copy_usd - self._egress, 0.0)
        x, rate_usd = self._filled(cost)
        origin = programme.origin_feeds if copy_usd >= programme.origin_copy_usd else 1.0
        value = float(x @ cost) + (programme.origin_copy_usd - copy_usd) * origin
        slope = float(x @ (1.0 - np.where(sends, self._feeds, 0.0))) - origin
        return _Tangent(Prices(rate_usd, copy_usd), value, slope)

    def _filled(self, cost: Floats) -> tuple[Floats, float]:
        """Return the cheapest shares of workers that reach the rate, shape [m], and the cost of one more rollout/s."""
        each = np.where(self._pinned, -np.inf, cost / self._useful)
        order = np.argsort(each, kind="stable")
        rate = np.cumsum(self._useful[order])
        needed = self._programme.rate_bought
        paid = int(np.count_nonzero(each < 0))  # pinned, or worth their copies alone
        last = min(int(np.searchsorted(rate, needed)), order.size - 1)
        x = np.zeros(order.size)
        if paid > last:
            x[order[:paid]] = 1.0
            return x, 0.0
        x[order[:last]] = 1.0
        x[order[last]] = min(1.0, 1.0 - (rate[last] - needed) / self._useful[order[last]])
        return x, max(0.0, float(each[order[last]]))


def reduced_at(programme: Programme, prices: Prices) -> Floats:
    """Return by how much the cost of each worker exceeds what it is worth at these prices, in USD/h; shape [n]."""
    earned = np.maximum(0.0, prices.copy - programme.level_copy_usd)[programme.columns.level]
    reduced: Floats = programme.cost - prices.rate * programme.useful + prices.copy - programme.feeds * earned
    return reduced


def best_prices(programme: Programme, places: Ints, near_copy_usd: float = 0.0) -> Prices | None:
    """Return the prices at which these workers' relaxation is dearest, its optimum; None if no set holds both rows.

    Args:
        near_copy_usd: the price of a copy in a similar programme; 0: not known.
    """
    useful = float(programme.useful[places].sum())
    if useful < programme.rate_bought * (1 - TOLERANCE):
        return None
    knapsacks = Knapsacks(programme, places)
    low = knapsacks.tangent(0.0)
    if low.slope <= 0:
        return low.prices
    if knapsacks.fewest_copies > programme.origin_feeds * (1 + TOLERANCE):
        return None
    high = _without_a_gap(knapsacks, near_copy_usd or low.prices.rate)
    return _where_tangents_meet(knapsacks, low, high).prices


def _without_a_gap(knapsacks: Knapsacks, copy_usd: float) -> _Tangent:
    """Return the tangent at a price of a copy that is high enough for senders to give every copy."""
    copy_usd = max(copy_usd, 1e-6)
    for _ in range(GROWTHS_MAX):
        found = knapsacks.tangent(copy_usd)
        if found.slope <= 0:
            break
        copy_usd *= GROWTH
    return found


def _where_tangents_meet(knapsacks: Knapsacks, low: _Tangent, high: _Tangent) -> _Tangent:
    """Return the tangent of the largest value between two whose slopes have different signs."""
    for _ in range(TANGENTS_MAX):
        if low.slope <= 0 or high.slope >= 0:
            break
        copy_usd = low.crossing(high)
        if not low.prices.copy < copy_usd < high.prices.copy:
            break
        found = knapsacks.tangent(copy_usd)
        if found.value >= low.at(copy_usd) - TOLERANCE * abs(found.value):
            return found
        low, high = (found, high) if found.slope > 0 else (low, found)
    return max(low, high, key=lambda one: one.value)
