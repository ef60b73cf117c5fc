"""Answer inverse questions: the smallest S, the largest model, what a dollar buys, which knob helps most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.columns import columns_of
from capacity.planner.linear import relax
from capacity.planner.planner import DEFAULTS, PlanOptions, lowest_bound, plan, possible, remedies
from capacity.planner.plans import Plan
from capacity.planner.programme import programme_of
from capacity.planner.remedies import S_MAX, smallest_whole
from capacity.questions.explain import Explanation, explain
from capacity.questions.sensitivities import KnobEffect, single_changes

HEADROOM_STEPS = 24  # rounds of bisection for what a dollar buys: to a ten-millionth
PROOFS_MAX = 8  # most plans made as proofs: a relaxation may hold rows that no set of whole workers holds
HEADROOM_FACTOR_MAX = 64.0

__all__ = [
    "Bought",
    "Explanation",
    "KnobEffect",
    "best_knob",
    "explain",
    "largest_model",
    "one_more_dollar",
    "smallest_staleness",
]


@dataclass(frozen=True, slots=True)
class Bought:
    """The gain from more money than the least that the plan needs.

    Args:
        usd_per_hour: the cost before.
        more_usd_per_hour: the money.
        rollouts_per_second: more of them, at least as many as the needed rate.
        t_train_s: the learner's step may be so long; shorter is a faster learner kept busy by the same S.
    """

    usd_per_hour: float
    more_usd_per_hour: float
    rollouts_per_second: float
    t_train_s: float


def smallest_staleness(demand: Demand, workers: Sequence[Worker], options: PlanOptions = DEFAULTS) -> Plan | None:
    """Return the plan at the smallest feasible S, within the budget if one is set; None if no S is feasible.

    More S only ever adds sets, so the search is a bisection; each S is proven by its plan.
    """
    columns = columns_of(demand, workers)
    quick = replace(options, remedies=False)
    kappa = demand.publish_every_steps

    def at(more: int) -> Demand:
        return replace(demand, staleness_limit=kappa + more)

    more = smallest_whole(lambda more: possible(at(more), columns), S_MAX)
    for steps in range(more, more + PROOFS_MAX) if more is not None else ():
        made = plan(at(steps), workers, quick)
        if made.feasible:
            return made
    return None


def largest_model(
    names: Iterable[str],
    scenario: Callable[[str], tuple[Demand, Sequence[Worker]]],
    options: PlanOptions = DEFAULTS,
) -> tuple[str, Plan] | None:
    """Return the first model for which a plan is feasible, and the plan; None if there is none.

    Args:
        names: models, the largest first.
        scenario: a model's demand and the pool's speeds with it: both its bytes and its speeds are different.
    """
    quick = replace(options, remedies=False)
    for name in names:
        demand, workers = scenario(name)
        made = plan(demand, workers, quick) if workers else None
        if made is not None and made.feasible:
            return name, made
    return None


def one_more_dollar(made: Plan, more_usd_per_hour: float = 1.0) -> Bought | None:
    """Return how many more rollouts a second the cheapest set makes for more money, at the plan's split.

    By bisection over the rate asked for, on the relaxation; None for a plan that chooses no worker.
    """
    if not made.feasible:
        return None
    columns = columns_of(made.demand, [one.worker for one in made.candidates])

    def bound(factor: float) -> float | None:
        demand = replace(made.demand, headroom=made.demand.headroom * factor, usd_per_hour_max=None)
        relaxation = relax(programme_of(demand, columns, made.split))
        return relaxation.bound if relaxation is not None else None

    now = bound(1.0)
    if now is None:
        return None
    low, high = 1.0, HEADROOM_FACTOR_MAX
    for _ in range(HEADROOM_STEPS):
        middle = (low + high) / 2
        cost = bound(middle)
        low, high = (middle, high) if cost is not None and cost <= now + more_usd_per_hour else (low, middle)
    bought = made.rate_needed_rollouts_per_second * made.demand.headroom
    return Bought(now, more_usd_per_hour, bought * (low - 1.0), made.demand.t_train_s / low)


def best_knob(demand: Demand, workers: Sequence[Worker], options: PlanOptions = DEFAULTS) -> KnobEffect | None:
    """Return the single change that saves most or, where no set is feasible, the smallest that makes one feasible.

    None where nothing helps. What a change saves is inf where there was no set before.
    """
    columns = columns_of(demand, workers)
    if plan(demand, workers, replace(options, remedies=False)).feasible:
        best = next(iter(single_changes(demand, workers, options=options)), None)
        return best if best is not None and best.saves_usd_per_hour > 0 else None
    smallest = next(iter(remedies(demand, columns, options)), None)
    if smallest is None:
        return None
    return KnobEffect(
        smallest.knob, smallest.change, lowest_bound(smallest.demand, smallest.columns, options), math.inf
    )
