"""Choose workers as people do without a planner: by simple rules, one worker after the other, judged by the same rows.

The rules get the split that the planner found, so that only the choice of workers differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from capacity.model.broadcast_bound import broadcast_seconds
from capacity.planner.columns import Floats, Ints, Mask
from capacity.planner.programme import Programme
from capacity.planner.totals import totals_of

Rule = Callable[[Programme], Mask]


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The set of a baseline, judged.

    Args:
        usd_per_hour: price of the workers and the least egress, without copies that no sender can send in time.
        t_bcast_s: fluid bound of the set in seconds, every worker relaying.
        feasible: whether the set satisfies every row.
    """

    name: str
    workers: int
    usd_per_hour: float
    t_bcast_s: float
    rate_rollouts_per_second: float
    feasible: bool


def cheapest_first(programme: Programme) -> Mask:
    """Choose workers by price an hour until the rate is reached."""
    return _until_enough(programme, programme.cost)


def price_per_throughput(programme: Programme) -> Mask:
    """Choose workers by price for each rollout a second until the rate is reached."""
    with np.errstate(divide="ignore"):
        return _until_enough(programme, programme.cost / programme.useful)


def multi_row_greedy(programme: Programme) -> Mask:
    """Choose workers by what a dollar adds to the rate and to the relay row, as shares of what each still lacks.

    After Dobson, "Worst-case analysis of greedy heuristics for integer programming with nonnegative data" (1982). A
    worker that adds to no unsatisfied row is not chosen.
    """
    totals = totals_of(programme)
    chosen = programme.lower > 0
    usable = np.flatnonzero((programme.upper > 0) & ~chosen)
    price = programme.cost[usable] + 1e-9
    while usable.size:
        _, rate, copies = (float(value[0]) for value in totals.judged(totals.of(chosen)[None, :]))
        if rate <= 0 and copies <= 0:
            break
        gain = np.zeros(usable.size)
        if rate > 0:
            gain += np.minimum(programme.useful[usable], rate) / rate
        giving = programme.feeds[usable] - 1.0
        if copies > 0:
            gain += np.minimum(giving, copies) / copies
        elif rate > 0:
            gain += np.minimum(0.0, giving) / max(1.0, _spare_copies(programme, chosen))
        best = int((gain / price).argmax())
        if gain[best] <= 0:
            break
        chosen[usable[best]] = True
        usable, price = np.delete(usable, best), np.delete(price, best)
    return chosen


#: Name -> rule.
BASELINES: dict[str, Rule] = {
    "cheapest_first": cheapest_first,
    "price_per_throughput": price_per_throughput,
    "multi_row_greedy": multi_row_greedy,
}


def judged(name: str, programme: Programme) -> BaselineResult:
    """Run a baseline and check its set against every row."""
    chosen = BASELINES[name](programme)
    totals, columns, demand = totals_of(programme), programme.columns, programme.demand
    sums = totals.of(chosen)[None, :]
    return BaselineResult(
        name=name,
        workers=int(chosen.sum()),
        usd_per_hour=float(totals.usd_per_hour(sums)[0]),
        t_bcast_s=broadcast_seconds(
            demand.update_bytes,
            demand.learner_upload_bytes_per_second,
            columns.upload[chosen],
            columns.download[chosen],
            demand.topology,
        ),
        rate_rollouts_per_second=float(programme.useful[chosen].sum()),
        feasible=bool(totals.feasible(sums)[0]),
    )


def _until_enough(programme: Programme, score: Floats) -> Mask:
    chosen = programme.lower > 0
    usable: Ints = np.flatnonzero((programme.upper > 0) & ~chosen)
    order = usable[np.argsort(score[usable], kind="stable")]
    reached = np.cumsum(programme.useful[order]) + float(programme.useful[chosen].sum())
    chosen[order[: int(np.searchsorted(reached, programme.rate_bought)) + 1]] = True
    return chosen


def _spare_copies(programme: Programme, chosen: Mask) -> float:
    return programme.origin_feeds - float((1.0 - programme.feeds[chosen]).sum())
