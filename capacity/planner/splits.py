"""Divide the staleness budget ``(S - kappa) T_train`` between generating and broadcasting.

More time to generate lets each worker run more rollouts at once, so that it generates more; the shorter time left to
broadcast raises the rate at which every copy must travel. Between two p90s that some worker offers, a longer time to
generate gains nothing, so only these are tried: all of them where they are few, else a grid that is refined around its
best.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from capacity.model.demand import Demand
from capacity.planner.columns import Columns, Floats
from capacity.planner.plans import Split

EVERY_TIME_WORKERS = 500  # in a pool up to this size relaxations are so quick that every time is tried,
EVERY_TIME = 64  # if there are at most this many times


def times_of(demand: Demand, columns: Columns) -> Floats:
    """Return the seconds for generating that can matter, ascending; empty where no rollout is young enough."""
    times = columns.generation_times_s()
    return times[times < demand.budget_s] if demand.update_bytes > 0 else times[times <= demand.budget_s]


def split_at(demand: Demand, t_gen_s: float) -> Split:
    return Split(t_gen_s, demand.budget_s - t_gen_s)


def splits_of(demand: Demand, columns: Columns, most: int) -> tuple[Split, ...]:
    """Return at most so many splits, spread over those that can matter, by rising time to generate."""
    times = times_of(demand, columns)
    return tuple(split_at(demand, float(times[place])) for place in _spread(times.size, most))


def explore(demand: Demand, columns: Columns, most: int, bound: Callable[[Split], float]) -> None:
    """Call ``bound`` for the splits that can matter: first a grid, then more around its best.

    Args:
        most: most splits to try; a small pool tries all.
        bound: the least cost at a split; inf where there is no set.
    """
    times = times_of(demand, columns)
    if times.size <= most or (len(columns) <= EVERY_TIME_WORKERS and times.size <= EVERY_TIME):
        for t_gen_s in times:
            bound(split_at(demand, float(t_gen_s)))
        return
    found = {place: bound(split_at(demand, float(times[place]))) for place in _spread(times.size, (most + 1) // 2)}
    while len(found) < most:
        place = _next(found)
        if place is None:
            return
        found[place] = bound(split_at(demand, float(times[place])))


def _spread(size: int, most: int) -> list[int]:
    if size == 0:
        return []
    return sorted(set(np.linspace(0, size - 1, min(size, most)).round().astype(int).tolist()))


def _next(found: dict[int, float]) -> int | None:
    """Return the middle of the wider gap next to the best; None where nothing lies between, or there is no best."""
    best = min(found, key=lambda place: (found[place], place))
    if not np.isfinite(found[best]):
        return None
    places = sorted(found)
    here = places.index(best)
    gaps = [(places[at + 1] - places[at], places[at]) for at in (here - 1, here) if 0 <= at < len(places) - 1]
    width, low = max(gaps)
    return low + width // 2 if width > 1 else None
