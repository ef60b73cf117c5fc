"""Find the most rollouts a second that a pool can give at a split, and the row that limits it.

This takes a millisecond, because prices play no part.

The relay row alone makes it a knapsack: workers that pass on at least one copy are free to take, and the others follow
by rate per copy that they cost, as far as the copies last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capacity.model.demand import Demand
from capacity.planner.columns import Columns, Mask
from capacity.planner.plans import RowName
from capacity.planner.programme import TOLERANCE, Programme, programme_of
from capacity.planner.splits import splits_of


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """The rates that a pool can give at a split, in rollouts/s.

    Args:
        chosen: shape [n], a set that holds the relay row, of the largest rate that the knapsack finds.
        rate: rate of that set.
        without_relaying: rate of all eligible workers, if copies needed no sender.
        without_links: rate of all workers whose rollouts are young enough, slow downlinks too.
    """

    programme: Programme
    chosen: Mask
    rate: float
    without_relaying: float
    without_links: float

    @property
    def share(self) -> float:
        """Share of the rate to be bought; 1 or more suffices."""
        return self.rate / self.programme.rate_bought if np.isfinite(self.programme.rate_bought) else 0.0

    @property
    def stopped_by(self) -> RowName | None:
        """The row that limits the rate; None if the needed rate is reached."""
        needed = self.programme.rate_bought
        if self.programme.origin_feeds < 1:
            return "learner_uplink"
        if self.rate >= needed:
            return None
        if self.without_relaying >= needed:
            return "relay"
        return "downlink" if self.without_links >= needed else "rate"


def reach_of(programme: Programme) -> Reach:
    """Return what the pool can give at this split."""
    usable = np.flatnonzero(programme.upper > 0)
    links = float(programme.useful[programme.columns.pin >= 0].sum())
    useful, taken = programme.useful[usable], 1.0 - programme.feeds[usable]
    chosen = np.zeros(len(programme.columns), np.bool_)
    if programme.origin_feeds >= 1:
        giving = taken <= 0
        left = programme.origin_feeds - float(taken[giving].sum())
        others = np.flatnonzero(~giving)
        others = others[np.argsort(taken[others] / useful[others], kind="stable")]
        chosen[usable[giving]] = True
        chosen[usable[others[np.cumsum(taken[others]) <= left * (1 + TOLERANCE)]]] = True
    return Reach(programme, chosen, float(programme.useful[chosen].sum()), float(useful.sum()), links)


def farthest(demand: Demand, columns: Columns, splits: int) -> Reach | None:
    """Return the split at which the pool gives the largest share of the rate; None where no rollout is young enough."""
    found = [reach_of(programme_of(demand, columns, split)) for split in splits_of(demand, columns, splits)]
    return max(found, key=lambda reach: (reach.share, reach.without_relaying), default=None)
