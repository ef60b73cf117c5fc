"""Find the cheapest set of workers that keeps the learner busy, and a lower bound on the cost of any set.

Per split of the staleness budget: the linear relaxation (its optimum is the bound), rounding, swaps, and a small
mixed-integer programme over the workers in doubt. Splits are tried in the order of their bounds, until the next bound
is not below the best set found. Sources: docs/capacity.md, where the derivation and the measurements are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.columns import Columns, Mask, columns_of
from capacity.planner.core_milp import WHOLE_POOL_COLUMNS, best_in_core
from capacity.planner.infeasible import explained
from capacity.planner.linear import Relaxation, relax
from capacity.planner.local_search import dropped, improved, rounded, weights_of
from capacity.planner.max_rate import farthest, reach_of
from capacity.planner.plans import Plan, Split
from capacity.planner.programme import Programme, programme_of
from capacity.planner.remedies import Remedy, remedies_of
from capacity.planner.senders import copies_sent, egress_of
from capacity.planner.splits import explore
from capacity.planner.totals import Totals, Weights, totals_of
from capacity.planner.written_plan import refused_plan, written_plan

GAP_OF_POOLS = 5e-4  # relative, of pools beyond the core: prices are less exact than that
GAP_MIN = 1e-9  # relative, of small pools: the best set itself
PATIENCE = 5  # factor on the time for the core where a budget is missed by little
CORE_MIN_S = 0.05  # seconds; in less the core finds nothing
SPLITS_SEARCHED = 2  # splits of a large pool whose sets are searched: the other bounds are close, and so are their sets
SPLITS_OF_REMEDIES = 5  # splits of each change that is tried
WEIGHINGS, HEAVIER = 4, 10.0  # factors on the weights of broken rows, until a set holds them


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one plan.

    Args:
        incumbent_discount: share by which the price of a worker that is on counts less, so that a set is left only for
            one that is cheaper by more than that.
        time_limit_s: for the mixed-integer programme of one split, or of all of them in a pool beyond 250.
        splits: how many splits of the staleness budget are tried at most.
        remedies: whether to look for changes that help where no set is feasible; that takes as long as many plans.
        clock: seconds; for ``Plan.solve_s``.
    """

    incumbent_discount: float = 0.0
    time_limit_s: float = 0.4
    splits: int = 12
    remedies: bool = True
    clock: Callable[[], float] = time.perf_counter


DEFAULTS = PlanOptions()


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A feasible set at one split.

    Args:
        usd_per_hour: cost with egress, incumbents discounted.
        integer_bound: cost below which no set of whole workers goes; 0 where that is not known.
    """

    relaxation: Relaxation
    chosen: Mask
    usd_per_hour: float
    integer_bound: float = 0.0

    @property
    def undiscounted_usd_per_hour(self) -> float:
        programme = self.relaxation.programme
        return self.usd_per_hour + float((programme.columns.price - programme.cost)[self.chosen].sum())


def plan(demand: Demand, workers: Sequence[Worker], options: PlanOptions = DEFAULTS) -> Plan:
    """Choose the workers of a demand.

    Returns:
        A plan; where no set is feasible, one without chosen workers whose ``infeasible`` has the reason.

    Raises:
        ValueError: two workers have one id.
    """
    started_s = options.clock()
    columns = columns_of(workers)
    relaxations = relaxed_splits(demand, columns, options)
    best = best_of(relaxations, options)
    if best is not None and over_budget(demand, best):
        best = _cheapest(demand, columns, options) or best
    if best is None or over_budget(demand, best):
        written = _refused(demand, columns, best, options)
    else:
        written = written_plan(best.relaxation, best.chosen, best.usd_per_hour)
    bound = min((relaxation.bound for relaxation in relaxations), default=0.0)
    return replace(
        written,
        solve_s=options.clock() - started_s,
        bound_over_splits_usd_per_hour=bound,
        splits_tried=len(relaxations),
        integer_bound_usd_per_hour=best.integer_bound if best is not None and written.feasible else 0.0,
    )


def over_budget(demand: Demand, solution: Solution) -> bool:
    return demand.usd_per_hour_max is not None and solution.undiscounted_usd_per_hour > demand.usd_per_hour_max


def _cheapest(demand: Demand, columns: Columns, options: PlanOptions) -> Solution | None:
    """Return the best set without regard to incumbents, with more time where the bound says the budget may suffice."""
    plain = replace(options, incumbent_discount=0.0)
    relaxations = relaxed_splits(demand, columns, plain)
    if not relaxations or relaxations[0].bound > (demand.usd_per_hour_max or math.inf):
        return best_of(relaxations, plain)
    return best_of(relaxations, replace(plain, time_limit_s=PATIENCE * plain.time_limit_s), GAP_MIN)


def possible(demand: Demand, columns: Columns, options: PlanOptions) -> bool:
    """Return whether the pool reaches the rate at some split and, where there are more rows, a relaxation holds all."""
    reach = farthest(demand, columns, options.splits)
    if reach is None or reach.stopped_by is not None:
        return False
    if not _asks_more(demand, columns):
        return True
    relaxations = relaxed_splits(demand, columns, options)
    return bool(relaxations) and relaxations[0].bound <= (demand.usd_per_hour_max or math.inf)


def _asks_more(demand: Demand, columns: Columns) -> bool:
    asked = demand.share_without_a_region > 0 or demand.chance_z > 0 or demand.usd_per_hour_max is not None
    return asked or bool((columns.pin > 0).any())


def _refused(demand: Demand, columns: Columns, best: Solution | None, options: PlanOptions) -> Plan:
    """Return the plan that chooses no worker, with the reason; ``best`` is the best set without the budget's row."""
    cheapest = best.undiscounted_usd_per_hour if best is not None else None
    words = tuple(str(remedy) for remedy in remedies(demand, columns, options)) if options.remedies else ()
    if cheapest is not None:
        words = (f"budget: {demand.usd_per_hour_max:.4g} -> {cheapest:.4g} $/h", *words)
    reach = farthest(demand, columns, options.splits)
    return refused_plan(demand, columns, reach, explained(demand, columns, reach, cheapest, words))


def remedies(demand: Demand, columns: Columns, options: PlanOptions) -> tuple[Remedy, ...]:
    """Return the single changes after which a set is feasible, the smallest first."""
    quick = replace(options, splits=min(options.splits, SPLITS_OF_REMEDIES))

    def holds(changed: Demand, changed_columns: Columns) -> bool:
        return possible(changed, changed_columns, quick)

    def proven(remedy: Remedy) -> bool:
        best = best_of(relaxed_splits(remedy.demand, remedy.columns, quick), quick)
        return best is not None and not over_budget(remedy.demand, best)

    found = remedies_of(demand, columns, holds)
    return tuple(remedy for remedy in found if proven(remedy)) if _asks_more(demand, columns) else found


def relaxed_splits(demand: Demand, columns: Columns, options: PlanOptions) -> list[Relaxation]:
    """Return the relaxations that have a solution, those of the smallest bound first."""
    found: list[Relaxation] = []

    def bound(split: Split) -> float:
        programme = programme_of(demand, columns, split, options.incumbent_discount)
        relaxation = relax(programme, found[-1] if found else None) if holds_pinned(programme) else None
        if relaxation is None:
            return math.inf
        found.append(relaxation)
        return relaxation.bound

    explore(demand, columns, options.splits, bound)
    return sorted(found, key=lambda relaxation: relaxation.bound)


def holds_pinned(programme: Programme) -> bool:
    """Return whether every worker that the operator pinned on can be on at this split."""
    return bool((programme.eligible | (programme.columns.pin <= 0)).all())


def best_of(relaxations: list[Relaxation], options: PlanOptions, gap: float = GAP_OF_POOLS) -> Solution | None:
    """Return the best set over the splits; a split whose bound is not below it is not searched.

    Args:
        relaxations: those of the smallest bound first.
        gap: relative; a set so close to the bound is not searched further. Small pools get the best set itself.
    """
    best: Solution | None = None
    large = bool(relaxations) and len(relaxations[0].x) > WHOLE_POOL_COLUMNS
    near, left_s = gap if large else GAP_MIN, options.time_limit_s
    for relaxation in relaxations[: SPLITS_SEARCHED if large else None]:
        if best is not None and relaxation.bound >= best.usd_per_hour * (1 - near):
            break
        started_s = options.clock()
        found = solved(relaxation, left_s, near)
        if large:
            left_s -= options.clock() - started_s
        if found is not None and (best is None or found.usd_per_hour < best.usd_per_hour):
            best = found
    return best


def solved(relaxation: Relaxation, time_limit_s: float, near: float) -> Solution | None:
    """Return a set near the bound of this split; None if none was found.

    Args:
        near: relative; a set so close to the bound is not improved further.
    """
    totals = totals_of(relaxation.programme)
    chosen = polished(relaxation, totals, rounded(relaxation))
    best = solution_of(relaxation, totals, chosen)
    close = best is not None and best.usd_per_hour <= relaxation.bound * (1 + near) + GAP_MIN
    if not close and (best is None or time_limit_s >= CORE_MIN_S):
        core = best_in_core(relaxation, chosen, max(time_limit_s, CORE_MIN_S), near if best is not None else 0.0)
        found = solution_of(relaxation, totals, core.chosen) if core is not None else None
        if found is not None and (best is None or found.usd_per_hour < best.usd_per_hour):
            best = found
        if best is not None and core is not None:
            best = replace(best, integer_bound=min(core.bound, best.usd_per_hour))
    if best is None:  # not even a small core gave a set: begin with the set of the largest rate
        widest = reach_of(relaxation.programme).chosen | (relaxation.programme.lower > 0)
        best = solution_of(relaxation, totals, polished(relaxation, totals, widest))
    return best


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
