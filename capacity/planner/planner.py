"""Find the cheapest set of workers that keeps the learner busy, and a lower bound on the cost of any set.

Branch and bound over every split of the staleness budget finds the one whose linear relaxation is cheapest (its
optimum is the bound); there rounding, swaps, and a small mixed-integer programme over the workers in doubt find a set.
Splits are searched in the order of their bounds, until the next bound is not below the best set found. The derivation
and the measurements are in docs/capacity-planner.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.columns import Columns, Mask, columns_of
from capacity.planner.core_milp import WHOLE_POOL_COLUMNS, best_in_core
from capacity.planner.infeasible import explained, unproven
from capacity.planner.linear import Relaxation, priced, relax
from capacity.planner.local_search import dropped, improved, rounded, weights_of
from capacity.planner.max_rate import farthest, reach_of
from capacity.planner.plans import Plan
from capacity.planner.programme import Programme, programme_of, programme_over
from capacity.planner.remedies import Remedy, remedies_of
from capacity.planner.splits import Cover, Interval, split_at, splits_of, times_of
from capacity.planner.totals import Totals, Weights, copies_sent, egress_of, totals_of
from capacity.planner.written_plan import refused_plan, written_plan

GAP_OF_POOLS = 5e-4  # relative, of pools beyond the core: prices are less exact than that
GAP_MIN = 1e-9  # relative, of small pools: the best set itself
PATIENCE = 5  # factor on the time for the core where a budget is missed by little, and for all splits of a small pool
CORE_MIN_S = 0.05  # seconds; in less the core finds nothing
SPLITS_SEARCHED_LARGE = (
    2  # splits of a large pool whose sets are searched: other bounds are close, and so are their sets
)
SPLITS_SEARCHED = 16  # the same of a small pool, where few workers cost far more than the bound
RELAXATIONS = 256  # most relaxations that refine the intervals of splits; 20 to 80 reach the best split of 50,000
SPLITS_OF_REMEDIES = 5  # splits of each change that is tried
SPLITS_OF_REACH = 12  # splits among which the one that comes closest explains why no set exists
WEIGHINGS, HEAVIER = 4, 10.0  # factors on the weights of broken rows, until a set holds them


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one plan.

    Args:
        incumbent_discount: share by which the price of a worker that is on counts less, so that a set is left only for
            one that is cheaper by more than that.
        time_limit_s: for the mixed-integer programme of one split; all of them together get five times that, in a pool
            beyond 250 no more than that.
        remedies: whether to look for changes that help where no set is feasible; that takes as long as many plans.
        clock: seconds; for ``Plan.solve_s``.
    """

    incumbent_discount: float = 0.0
    time_limit_s: float = 0.3
    remedies: bool = True
    clock: Callable[[], float] = time.perf_counter


DEFAULTS = PlanOptions()


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A feasible set at one split.

    Args:
        usd_per_hour: cost with egress, incumbents discounted.
    """

    relaxation: Relaxation
    chosen: Mask
    usd_per_hour: float

    @property
    def undiscounted_usd_per_hour(self) -> float:
        programme = self.relaxation.programme
        return self.usd_per_hour + float((programme.columns.price - programme.cost)[self.chosen].sum())


@dataclass(slots=True)
class Search:
    """What the search over all splits of a demand found.

    Args:
        cover: the bounds of all splits, those of searched sets included.
        lp_bound: USD/h, the smallest bound of the linear relaxations; inf where none has a solution.
        best: the cheapest set found; None if none was found.
        cheapest: the relaxation of the smallest bound; None where none has a solution.
    """

    cover: Cover
    lp_bound: float = math.inf
    best: Solution | None = None
    cheapest: Relaxation | None = field(default=None)


def plan(demand: Demand, workers: Sequence[Worker], options: PlanOptions = DEFAULTS) -> Plan:
    """Choose the workers of a demand.

    Returns:
        A plan; where no set is feasible, one without chosen workers whose ``infeasible`` has the reason.

    Raises:
        ValueError: two workers have one id.
    """
    started_s = options.clock()
    made = plan_over(demand, columns_of(demand, workers), options)
    return replace(made, solve_s=options.clock() - started_s)


def plan_over(demand: Demand, columns: Columns, options: PlanOptions = DEFAULTS) -> Plan:
    """Choose among the workers of a pool that is in arrays already, as ``plan`` does.

    Args:
        columns: of this demand, or of one that differs in headroom, margin, rollouts per step or budget alone.
    """
    started_s = options.clock()
    search = searched(demand, columns, options)
    if search.best is not None and over_budget(demand, search.best):
        search = _cheapest(demand, columns, options, search)
    best = search.best
    if best is None or over_budget(demand, best):
        written = _refused(demand, columns, search, options)
    else:
        written = written_plan(best.relaxation, best.chosen, best.usd_per_hour, search.lp_bound)
        written = replace(written, integer_bound_usd_per_hour=_beyond(search, best))
    return replace(written, solve_s=options.clock() - started_s)


def _beyond(search: Search, best: Solution) -> float:
    """Return the cost below which no set of whole workers goes; 0 where no more than the LP bound is known."""
    bound = float(min(search.cover.bound, best.usd_per_hour))
    return bound if bound > search.lp_bound * (1 + GAP_MIN) else 0.0


def searched(demand: Demand, columns: Columns, options: PlanOptions, gap: float = GAP_OF_POOLS) -> Search:
    """Search the splits for the best set, those of the smallest bound first.

    A split whose bound is not below the best set is not searched, and no split is left out without a bound.

    Args:
        gap: relative, of large pools; a set so close to the bound is not improved. Small pools get the best set itself.
    """
    large = len(columns) > WHOLE_POOL_COLUMNS
    near, left_s = gap if large else GAP_MIN, options.time_limit_s * (1 if large else PATIENCE)
    search = Search(cover_of(demand, columns, options))
    for _ in range(SPLITS_SEARCHED_LARGE if large else SPLITS_SEARCHED):
        if search.best is not None and search.cover.bound >= search.best.usd_per_hour * (1 - near):
            break
        interval = _next_split(search, large, near, min(left_s, options.time_limit_s))
        if interval is None:
            break
        search.lp_bound = min(search.lp_bound, interval.bound)
        relaxation = _relaxed(demand, columns, options, float(search.cover.times_s[interval.last]))
        started_s = options.clock()
        limit_s = min(left_s, options.time_limit_s)
        found = solved(relaxation, limit_s, near) if relaxation is not None else Solved(None, 0.0)
        left_s -= options.clock() - started_s
        exact = interval.first == interval.last and not demand.pauses_while_receiving
        search.cover.close(max(interval.bound, found.integer_bound) if exact else interval.bound)
        search.cheapest = search.cheapest or relaxation
        if found.best is not None and (search.best is None or found.best.usd_per_hour < search.best.usd_per_hour):
            search.best = found.best
    search.lp_bound = min(search.lp_bound, search.cover.bound)
    if search.best is None and search.cheapest is not None:
        search.best = _widest(demand, columns, options)
    return search


def _next_split(search: Search, large: bool, near: float, limit_s: float) -> Interval | None:
    """Return the split to search next; in a small pool, without the intervals that hold no better whole set."""
    if large or search.best is None:
        return search.cover.pop_lowest()

    def integer_bound(relaxation: Relaxation) -> float:
        return best_in_core(relaxation, rounded(relaxation), max(limit_s, CORE_MIN_S)).bound

    return search.cover.pop_lowest(integer_bound, search.best.usd_per_hour * (1 - near))


def _widest(demand: Demand, columns: Columns, options: PlanOptions) -> Solution | None:
    """Return a set that begins with the one of the largest rate at any split; None if that leads to none."""
    reach = farthest(demand, columns, SPLITS_OF_REACH)
    relaxation = _relaxed(demand, columns, options, reach.programme.split.t_gen_s) if reach is not None else None
    if reach is None or relaxation is None:
        return None
    totals = totals_of(relaxation.programme)
    chosen = reach.chosen | (relaxation.programme.lower > 0)
    return solution_of(relaxation, totals, polished(relaxation, totals, chosen))


def cover_of(demand: Demand, columns: Columns, options: PlanOptions) -> Cover:
    """Return the bounds of all splits, not yet refined, and without the chance row, which no linear row bounds."""
    times_s = times_of(demand, columns)
    certain = replace(demand, chance_z=0.0)

    def relax_over(first: int, last: int, near: Relaxation | None) -> Relaxation | None:
        programme = programme_over(certain, columns, times_s, first, last, options.incumbent_discount)
        return priced(programme, near) if holds_pinned(programme) else None

    return Cover(times_s, relax_over, RELAXATIONS)


def lowest_bound(demand: Demand, columns: Columns, options: PlanOptions = DEFAULTS) -> float:
    """Return the cost per hour below which no set goes at any split, by the linear relaxation; inf if none exists."""
    interval = cover_of(demand, columns, options).pop_lowest()
    return math.inf if interval is None else interval.bound


def _relaxed(demand: Demand, columns: Columns, options: PlanOptions, t_gen_s: float) -> Relaxation | None:
    """Return the relaxation of one split; None if no set holds its rows."""
    programme = programme_of(demand, columns, split_at(demand, t_gen_s), options.incumbent_discount)
    return relax(programme) if holds_pinned(programme) else None


def over_budget(demand: Demand, solution: Solution) -> bool:
    return demand.usd_per_hour_max is not None and solution.undiscounted_usd_per_hour > demand.usd_per_hour_max


def _cheapest(demand: Demand, columns: Columns, options: PlanOptions, search: Search) -> Search:
    """Search without regard to incumbents, with more time where the bound says that the budget may suffice."""
    plain = replace(options, incumbent_discount=0.0)
    if search.lp_bound <= (demand.usd_per_hour_max or math.inf):
        plain = replace(plain, time_limit_s=PATIENCE * plain.time_limit_s)
    return searched(demand, columns, plain, GAP_MIN)


def possible(demand: Demand, columns: Columns) -> bool:
    """Return whether the pool reaches the rate at some split and, where there are more rows, a relaxation holds all."""
    reach = farthest(demand, columns, SPLITS_OF_REMEDIES)
    if reach is None or reach.stopped_by is not None:
        return False
    if not _asks_more(demand, columns):
        return True
    plain = PlanOptions()
    found = (_relaxed(demand, columns, plain, one.t_gen_s) for one in splits_of(demand, columns, SPLITS_OF_REMEDIES))
    return any(one is not None and one.bound <= (demand.usd_per_hour_max or math.inf) for one in found)


def _asks_more(demand: Demand, columns: Columns) -> bool:
    asked = demand.share_without_a_region > 0 or demand.chance_z > 0 or demand.usd_per_hour_max is not None
    return asked or bool((columns.pin > 0).any())


def _refused(demand: Demand, columns: Columns, search: Search, options: PlanOptions) -> Plan:
    """Return the plan that chooses no worker, with the reason; a set that was found is over the budget."""
    cheapest = search.best.undiscounted_usd_per_hour if search.best is not None else None
    words = tuple(str(remedy) for remedy in remedies(demand, columns, options)) if options.remedies else ()
    proven = search.cover.bound == math.inf
    if cheapest is not None:
        words = (f"budget: {demand.usd_per_hour_max:.4g} -> {cheapest:.4g} $/h", *words)
        proven = search.cover.bound > (demand.usd_per_hour_max or math.inf)
    reach = farthest(demand, columns, SPLITS_OF_REACH)
    why = explained(demand, columns, reach, cheapest, words)
    return refused_plan(demand, columns, reach, why if proven else unproven(why, search.lp_bound))


def remedies(demand: Demand, columns: Columns, options: PlanOptions) -> tuple[Remedy, ...]:
    """Return the single changes after which a set is feasible, the smallest first."""

    def proven(remedy: Remedy) -> bool:
        best = searched(remedy.demand, remedy.columns, options).best
        return best is not None and not over_budget(remedy.demand, best)

    found = remedies_of(demand, columns, possible)
    return tuple(remedy for remedy in found if proven(remedy)) if _asks_more(demand, columns) else found


def holds_pinned(programme: Programme) -> bool:
    """Return whether every worker that the operator pinned on can be on at this split."""
    return bool((programme.eligible | (programme.columns.pin <= 0)).all())


@dataclass(frozen=True, slots=True)
class Solved:
    """What one split gave: its best set, if any, and USD/h below which no set of whole workers costs there."""

    best: Solution | None
    integer_bound: float


def solved(relaxation: Relaxation, time_limit_s: float, near: float) -> Solved:
    """Search a set near the bound of this split.

    Args:
        near: relative; a set so close to the bound is not improved further.
    """
    totals = totals_of(relaxation.programme)
    chosen = polished(relaxation, totals, rounded(relaxation))
    best, bound = solution_of(relaxation, totals, chosen), 0.0
    close = best is not None and best.usd_per_hour <= relaxation.bound * (1 + near) + GAP_MIN
    if not close and (best is None or time_limit_s >= CORE_MIN_S):
        core = best_in_core(relaxation, chosen, max(time_limit_s, CORE_MIN_S), near if best is not None else 0.0)
        bound = core.bound
        found = solution_of(relaxation, totals, core.chosen) if core.chosen is not None else None
        if found is not None and (best is None or found.usd_per_hour < best.usd_per_hour):
            best = found
    if best is None and np.isfinite(bound):  # not even a small core gave a set: begin with the set of the largest rate
        widest = reach_of(relaxation.programme).chosen | (relaxation.programme.lower > 0)
        best = solution_of(relaxation, totals, polished(relaxation, totals, widest))
    return Solved(best, bound if best is None else min(bound, best.usd_per_hour))


def polished(relaxation: Relaxation, totals: Totals, chosen: Mask) -> Mask:
    """Swap with growing weights of broken rows until a set holds them all, then drop the workers not needed."""
    weights = weights_of(relaxation, totals, chosen)
    for _ in range(WEIGHINGS):
        chosen = improved(relaxation, totals, chosen, weights)
        if totals.feasible(totals.of(chosen)[None, :])[0]:
            break
        weights = Weights(weights.rate * HEAVIER, weights.copies * HEAVIER)
    active = relaxation.programme.columns.active
    return dropped(totals, chosen, np.lexsort((-relaxation.reduced, active)))


def solution_of(relaxation: Relaxation, totals: Totals, chosen: Mask) -> Solution | None:
    """Return the set with its cost by exact prices; None if a row is broken or a worker pinned on is not in it."""
    programme = relaxation.programme
    pinned = bool(chosen[programme.lower > 0].all())
    if not chosen.any() or not pinned or not totals.feasible(totals.of(chosen)[None, :])[0]:
        return None
    try:
        egress = egress_of(programme, copies_sent(programme, chosen))
    except ValueError:  # copies short by a rounding that the totals forgive
        return None
    return Solution(relaxation, chosen, float(programme.cost[chosen].sum()) + egress.usd_per_hour)
