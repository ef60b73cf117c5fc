"""Local search from a rounded set: one in, one out, 1-1, 1-2 and 2-1 swaps among the workers in doubt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capacity.columns import Floats, Ints, Mask
from capacity.linear import Relaxation
from capacity.totals import Totals, Weights

IN_DOUBT = 48  # chosen workers of the largest reduced cost, and others of the smallest, that are tried
IN_PAIRS = 24  # of each, in pairs
MOVES_MAX = 200
GAIN_MIN = 1e-12  # relative: a smaller gain is a rounding

Pairs = NDArray[np.int64]


def improved(
    relaxation: Relaxation, totals: Totals, chosen: Mask, weights: Weights, moves_max: int = MOVES_MAX
) -> Mask:
    """Best move first, until none gains: by cost and what broken rows count. Shape [n], as ``chosen``.

    Single moves are tried first; pairs only where no single one gains.
    """
    chosen, sums = chosen.copy(), totals.of(chosen)
    value = float(totals.penalised(sums[None, :], weights)[0])
    for _ in range(moves_max):
        inside, outside = _in_doubt(relaxation, chosen)
        best = None
        for moves in (_single, _paired):
            removed, added = moves(inside, outside)
            if len(removed):
                best = _best(totals, weights, sums, removed, added, value)
            if best is not None:
                break
        if best is None:
            break
        out, into, sums, value = best
        chosen[out], chosen[into] = False, True
    return chosen


def _in_doubt(relaxation: Relaxation, chosen: Mask) -> tuple[Ints, Ints]:
    """Chosen ones that may go, the dearest first; others that may come, the best first."""
    programme, reduced = relaxation.programme, relaxation.reduced
    inside = np.flatnonzero(chosen & (programme.lower == 0))
    outside = np.flatnonzero(~chosen & (programme.upper > 0))
    inside = inside[np.argsort(-reduced[inside], kind="stable")[:IN_DOUBT]]
    if outside.size > IN_DOUBT:
        outside = outside[np.argpartition(reduced[outside], IN_DOUBT)[:IN_DOUBT]]
    return inside, outside[np.argsort(reduced[outside], kind="stable")]


def _single(inside: Ints, outside: Ints) -> tuple[Pairs, Pairs]:
    """Moves as (removed, added), shape [moves, 2] each; -1 where a place is not used."""
    out, into = np.meshgrid(np.append(inside, -1), np.append(outside, -1), indexing="ij")
    removed, added = out.ravel(), into.ravel()
    real = (removed >= 0) | (added >= 0)
    nobody = np.full(int(real.sum()), -1)
    return np.column_stack([removed[real], nobody]), np.column_stack([added[real], nobody])


def _paired(inside: Ints, outside: Ints) -> tuple[Pairs, Pairs]:
    """1-2 and 2-1 swaps, and two in or two out."""
    inside, outside = inside[:IN_PAIRS], outside[:IN_PAIRS]
    one_out, two_in = _crossed(inside, outside)
    one_in, two_out = _crossed(outside, inside)
    return np.concatenate([one_out, two_out]), np.concatenate([two_in, one_in])


def _crossed(ones: Ints, twos: Ints) -> tuple[Pairs, Pairs]:
    """Every one (and nobody) against every pair; shapes [moves, 2]."""
    first, second = np.triu_indices(twos.size, k=1)
    ones = np.append(ones, -1)
    single = np.repeat(ones, first.size)
    pairs = np.column_stack([np.tile(twos[first], ones.size), np.tile(twos[second], ones.size)])
    return np.column_stack([single, np.full(single.size, -1)]), pairs


def _best(
    totals: Totals, weights: Weights, sums: Floats, removed: Pairs, added: Pairs, value: float
) -> tuple[Ints, Ints, Floats, float] | None:
    features = totals.features  # -1 is its last row: nobody
    changed = sums + features[added].sum(axis=1) - features[removed].sum(axis=1)
    values = totals.penalised(changed, weights)
    best = int(values.argmin())
    if values[best] >= value - GAIN_MIN * max(1.0, abs(value)):
        return None
    out, into = removed[best], added[best]
    return out[out >= 0], into[into >= 0], changed[best], float(values[best])
