"""From the relaxation to a first set of workers."""

from __future__ import annotations

import numpy as np

from capacity.planner.columns import Mask
from capacity.planner.linear import Relaxation
from capacity.planner.totals import Totals, Weights

WHOLE = 1e-6  # x above 1 - so much is a whole worker
DEARER = 2.0  # than its shadow price: what a broken row counts, so that mending it pays


def rounded(relaxation: Relaxation) -> Mask:
    """Every worker of which the relaxation takes a part; the few parts too many are for the swaps to undo."""
    return relaxation.x > WHOLE


def weights_of(relaxation: Relaxation, totals: Totals, chosen: Mask) -> Weights:
    """What broken rows count: above the shadow prices, and above the average price where a row does not bind."""
    programme, sums = relaxation.programme, totals.of(chosen)
    usd = float(totals.usd_per_hour(sums[None, :])[0]) + 1e-6
    per_rate = sum(value for (row, _), value in relaxation.duals.items() if row in ("rate", "chance", "region"))
    per_copy = relaxation.duals.get(("relay", ""), 0.0)
    count = max(1, int(chosen.sum()))
    return Weights(
        rate=DEARER * max(per_rate, usd / programme.rate_bought),
        copies=DEARER * max(per_copy, usd / count),
    )


def dropped(totals: Totals, chosen: Mask, order: np.ndarray) -> Mask:
    """Without the workers, tried in this order, that no row needs and that cost something or nothing."""
    programme = totals.programme
    chosen, sums = chosen.copy(), totals.of(chosen)
    usd = float(totals.usd_per_hour(sums[None, :])[0])
    for place in order:
        if not chosen[place] or programme.lower[place] > 0:
            continue
        without = sums - totals.features[place]
        without_usd = float(totals.usd_per_hour(without[None, :])[0])
        if without_usd <= usd and totals.feasible(without[None, :])[0]:
            chosen[place], sums, usd = False, without, without_usd
    return chosen
