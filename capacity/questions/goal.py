"""Choose among plans by a deadline or a budget for a number of learner steps, and find what would keep one missed.

A goal counts as kept if the median of the forecast keeps it (capacity/questions/horizon.py); the 90th percentile is
reported beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from capacity.planner.plans import Plan
from capacity.questions.horizon import Forecast, Verdict, forecast, uncertainty_of
from capacity.questions.promise import promised
from capacity.questions.scenario import Scenario

_LEARNER_TRIES, _FASTER = 3, 0.93  # plans for a faster learner, each this factor faster than the one before
_MORE_STALENESS = (1, 2, 4)  # added to S where the budget is missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted of so many learner steps, at the median. None: no such limit."""

    steps: int
    deadline_hours: float | None = None
    budget_usd: float | None = None

    @property
    def limits(self) -> bool:
        return self.deadline_hours is not None or self.budget_usd is not None

    def kept_by(self, found: Forecast) -> bool:
        return self.in_time(found) and (self.budget_usd is None or found.usd.p50 <= self.budget_usd)

    def in_time(self, found: Forecast) -> bool:
        return self.deadline_hours is None or found.hours.p50 <= self.deadline_hours


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan of a scenario, with its forecast."""

    scenario: Scenario
    plan: Plan
    forecast: Forecast


def chosen_for(goal: Goal, plans: Sequence[tuple[Scenario, Plan]], *, seed: int) -> Choice:
    """Return the cheapest plan that keeps the goal, else the cheapest in time, else the fastest.

    Args:
        plans: feasible ones, at least one.
    """
    found = [Choice(scenario, made, forecast_of(goal, scenario, made, seed)) for scenario, made in plans]
    for keeps in (goal.kept_by, goal.in_time):
        keeping = [one for one in found if keeps(one.forecast)]
        if keeping:
            return min(keeping, key=lambda one: one.forecast.usd.p50)
    return min(found, key=lambda one: one.forecast.hours.p50)


def forecast_of(goal: Goal, scenario: Scenario, made: Plan, seed: int, steps: int | None = None) -> Forecast:
    """Return the forecast of a plan over the goal's steps, or over others."""
    return forecast(
        made,
        goal.steps if steps is None else steps,
        uncertainty_of(scenario.assumptions),
        seed=seed,
        deadline_hours=goal.deadline_hours,
        budget_usd=goal.budget_usd,
    )


def verdict_of(goal: Goal, choice: Choice, *, seed: int) -> Verdict:
    """Return whether the chosen plan keeps the goal and, if not, the single changes that help, each of them proven."""
    kept = goal.kept_by(choice.forecast)
    remedies = () if kept else tuple(words for _, words in sorted(_remedies(goal, choice, seed)))
    return Verdict(kept, _what(goal, choice.forecast), remedies)


def _what(goal: Goal, found: Forecast) -> str:
    parts = []
    if goal.deadline_hours is not None:
        parts.append(
            f"take {found.hours.p50:,.2f} h at the median and {found.hours.p90:,.2f} h at p90, "
            f"the deadline is {goal.deadline_hours:,.4g} h"
        )
    if goal.budget_usd is not None:
        parts.append(
            f"cost {found.usd.p50:,.2f} $ at the median and {found.usd.p90:,.2f} $ at p90, "
            f"the budget is {goal.budget_usd:,.4g} $"
        )
    return f"{goal.steps:,} steps " + "; they ".join(parts)


def _remedies(goal: Goal, choice: Choice, seed: int) -> Iterator[tuple[float, str]]:
    """Yield changes with their relative size. A single change must keep deadline and budget both."""
    found = choice.forecast
    late, dear = not goal.in_time(found), goal.budget_usd is not None and found.usd.p50 > goal.budget_usd
    if goal.deadline_hours is not None and late and not dear:
        change = f"deadline: {goal.deadline_hours:,.4g} -> {_up(found.hours.p50):,.4g} h"
        yield found.hours.p50 / goal.deadline_hours - 1.0, change
    if goal.budget_usd is not None and dear and not late:
        change = f"budget: {goal.budget_usd:,.4g} -> {_up(found.usd.p50):,.4g} $"
        yield found.usd.p50 / goal.budget_usd - 1.0, change
    fewer = _largest(
        lambda steps: goal.kept_by(forecast_of(goal, choice.scenario, choice.plan, seed, steps)), goal.steps
    )
    if fewer:
        yield goal.steps / fewer - 1.0, f"steps: {goal.steps:,} -> {fewer:,}"
    yield from _faster_learner(goal, choice, seed) if late else _more_staleness(goal, choice, seed)


def _faster_learner(goal: Goal, choice: Choice, seed: int) -> Iterator[tuple[float, str]]:
    """Yield a shorter T_train that keeps the goal, at a price that grows as the step shrinks."""
    assert goal.deadline_hours is not None
    demand, share = choice.plan.demand, goal.deadline_hours / choice.forecast.hours.p50
    for _ in range(_LEARNER_TRIES):
        faster = replace(
            demand, t_train_s=demand.t_train_s * share, learner_usd_per_hour=demand.learner_usd_per_hour / share
        )
        made = promised(faster, choice.scenario.workers, headroom_least=choice.scenario.headroom_least)
        if made.feasible and goal.kept_by(forecast_of(goal, choice.scenario, made, seed)):
            change = f"T_train: {demand.t_train_s:,.4g} -> {faster.t_train_s:,.4g} s"
            yield 1.0 / share - 1.0, f"{change}, a learner {1.0 / share:.2f} times as fast and as dear"
            return
        share *= _FASTER


def _more_staleness(goal: Goal, choice: Choice, seed: int) -> Iterator[tuple[float, str]]:
    """Yield a larger S with which cheaper workers keep the budget."""
    demand = choice.plan.demand
    for more in _MORE_STALENESS:
        limit = demand.staleness_limit + more
        looser = replace(demand, staleness_limit=limit)
        made = promised(looser, choice.scenario.workers, headroom_least=choice.scenario.headroom_least)
        if made.feasible and goal.kept_by(forecast_of(goal, choice.scenario, made, seed)):
            yield more / demand.staleness_limit, f"S: {demand.staleness_limit} -> {limit}"
            return


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number below ``most`` for which a monotone test holds; 0 if there is none."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _up(value: float) -> float:
    """Round up to three digits, so that the change that is printed suffices."""
    digits = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / digits) * digits
