"""Round the relaxation to a first set, and improve it by local search.

Moves are one in, one out, and 1-1, 1-2, 2-1 and 2-2 swaps among the workers in doubt.

Broken rows count at more than their shadow prices, so that the search may cross them; thousands of sets are judged on
the way, and the best of those that hold every row is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.planner.columns import Floats, Ints, Mask
from capacity.planner.linear import Relaxation
from capacity.planner.totals import Totals, Weights

IN_DOUBT = 48  # chosen workers of the largest reduced cost, and others of the smallest, that are tried
IN_PAIRS = 24  # workers of each kind in 1-2 and 2-1 swaps
IN_TWO_PAIRS = 8  # workers of each kind in 2-2 swaps
MOVES_MAX = 200
GAIN_MIN = 1e-12  # relative: a smaller gain is a rounding

Pairs = NDArray[np.int64]


@dataclass(slots=True)
class _Search:
    """The current set of a search, and the best set seen that holds every row."""

    totals: Totals
    weights: Weights
    chosen: Mask
    sums: Floats
    value: float
    best: Mask | None = None
    best_usd: float = np.inf

    def tried(self, removed: Pairs, added: Pairs) -> bool:
        """Judge moves, shape [moves, 2] each and -1 where a place is not used; make the best one, if it gains."""
        features = self.totals.features  # -1 is its last row: no worker
        changed = self.sums + features[added].sum(axis=1) - features[removed].sum(axis=1)
        usd, rate, copies = self.totals.judged(changed)
        self._keep_best(np.where((rate == 0) & (copies == 0), usd, np.inf), removed, added)
        values = usd + self.weights.rate * rate + self.weights.copies * copies
        move = int(values.argmin())
        if values[move] >= self.value - GAIN_MIN * max(1.0, abs(self.value)):
            return False
        self.chosen = _moved(self.chosen, removed[move], added[move])
        self.sums, self.value = changed[move], float(values[move])
        return True

    def _keep_best(self, usd: Floats, removed: Pairs, added: Pairs) -> None:
        move = int(usd.argmin())
        if usd[move] < self.best_usd:
            self.best, self.best_usd = _moved(self.chosen, removed[move], added[move]), float(usd[move])


def improved(relaxation: Relaxation, totals: Totals, chosen: Mask, weights: Weights) -> Mask:
    """Make the best move until none gains; return the best set seen that holds every row, else the last set.

    Single moves are tried first, larger ones only where no smaller one gains. Shape [n], as ``chosen``.
    """
    sums = totals.of(chosen)
    search = _Search(totals, weights, chosen, sums, float(totals.penalised(sums[None, :], weights)[0]))
    if totals.feasible(sums[None, :])[0]:
        search.best, search.best_usd = chosen, search.value
    for _ in range(MOVES_MAX):
        inside, outside = _in_doubt(relaxation, search.chosen)
        if not any(moves[0].size and search.tried(*moves) for moves in _moves(inside, outside)):
            break
    return search.chosen if search.best is None else search.best


def _moved(chosen: Mask, removed: Ints, added: Ints) -> Mask:
    chosen = chosen.copy()
    chosen[removed[removed >= 0]] = False
    chosen[added[added >= 0]] = True
    return chosen


def _in_doubt(relaxation: Relaxation, chosen: Mask) -> tuple[Ints, Ints]:
    """Return the chosen workers that may go, the dearest first, and others that may come, the best first."""
    programme, reduced = relaxation.programme, relaxation.reduced
    inside = np.flatnonzero(chosen & (programme.lower == 0))
    outside = np.flatnonzero(~chosen & (programme.upper > 0))
    inside = inside[np.argsort(-reduced[inside], kind="stable")[:IN_DOUBT]]
    if outside.size > IN_DOUBT:
        outside = outside[np.argpartition(reduced[outside], IN_DOUBT)[:IN_DOUBT]]
    return inside, outside[np.argsort(reduced[outside], kind="stable")]


def _moves(inside: Ints, outside: Ints) -> Iterator[tuple[Pairs, Pairs]]:
    """Yield neighbourhoods as (removed, added), the small ones first."""
    yield _crossed(_alone(inside), _alone(outside))
    one_out, one_in = _alone(inside[:IN_PAIRS]), _alone(outside[:IN_PAIRS])
    yield _crossed(one_out, _pairs(outside[:IN_PAIRS]))
    yield _crossed(_pairs(inside[:IN_PAIRS]), one_in)
    yield _crossed(_pairs(inside[:IN_TWO_PAIRS]), _pairs(outside[:IN_TWO_PAIRS]))


def _alone(places: Ints) -> Pairs:
    """Return moves of each worker alone, and the empty move; shape [places + 1, 2]."""
    first = np.append(places, -1)
    return np.column_stack([first, np.full(first.size, -1)])


def _pairs(places: Ints) -> Pairs:
    first, second = np.triu_indices(places.size, k=1)
    return np.column_stack([places[first], places[second]])


def _crossed(removed: Pairs, added: Pairs) -> tuple[Pairs, Pairs]:
    """Combine every removal with every addition; shape [moves, 2] each."""
    return np.repeat(removed, len(added), axis=0), np.tile(added, (len(removed), 1))


WHOLE = 1e-6  # x above 1 minus this counts as a whole worker
DEARER = 2.0  # times its shadow price: the weight of a broken row, so that repairing it pays


def rounded(relaxation: Relaxation) -> Mask:
    """Choose every worker of which the relaxation takes a part; swaps undo the few that are too many."""
    return relaxation.x > WHOLE


def weights_of(relaxation: Relaxation, totals: Totals, chosen: Mask) -> Weights:
    """Return the weights of broken rows: above shadow prices, and above the average price where a row does not bind."""
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
    """Return the set without the workers that no row needs, tried once each in this order."""
    chosen, sums = chosen.copy(), totals.of(chosen)
    usd = float(totals.usd_per_hour(sums[None, :])[0])
    places = order[chosen[order] & (totals.programme.lower[order] == 0)]
    while places.size:
        without = sums - totals.features[places]
        without_usd, rate, copies = totals.judged(without)
        spare = np.flatnonzero((without_usd <= usd) & (rate == 0) & (copies == 0))
        if not spare.size:
            break
        first = int(spare[0])
        chosen[places[first]], sums, usd = False, without[first], float(without_usd[first])
        places = places[first + 1 :]
    return chosen
