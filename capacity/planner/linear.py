"""Solve the linear relaxation of a split's programme for the bound, the shadow prices and the reduced costs.

The method is sifting: a linear programme over the columns that look best, the others priced by its duals, those that
would improve it added, until none does. Source: Bixby, Gregory, Lustig, Marsten, Shanno, "Very large-scale linear
programming: a case study in combining interior point and simplex methods" (1992), section 3. The bound is computed from
the duals by weak duality over all columns, so that it holds whatever the solver's tolerances are.

scipy takes half a second to load, so it is imported where it solves: commands have said by then that they plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from capacity.planner.columns import Floats, Ints
from capacity.planner.lagrangian import Prices, best_prices, reduced_at
from capacity.planner.matrix import Matrix, matrix_of
from capacity.planner.programme import Programme

WORKING_COLUMNS = 800  # columns in the first round of sifting
NEAR_COLUMNS = 400  # the same where a relaxation nearby shows which columns are promising
ADDED_COLUMNS = 500  # most columns added in one round
DEVIATION_ROUNDS = 6  # rounds of placing the tangent of the chance row
DEVIATION_TOLERANCE = 1e-4  # relative change at which the tangent has converged
REDUCED_COST_TOLERANCE = 1e-9  # relative to the dearest column's cost

_INFEASIBLE = 2  # status of scipy.optimize.linprog

Key = tuple[str, str]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The optimum of the relaxation of ``programme``, whose chance row's tangent is placed.

    Args:
        x: shape [n].
        bound: USD/h; no set costs less at this split.
        reduced: shape [n], USD/h.
        duals: (row, subject) -> USD/h that one more unit asked for costs; per rollout/s, relay and levels per copy.
    """

    programme: Programme
    x: Floats
    bound: float
    reduced: Floats
    duals: dict[Key, float]


def relax(programme: Programme, near: Relaxation | None = None) -> Relaxation | None:
    """Solve the relaxation; None proves that no set holds the rows.

    The tangent of the chance row is stricter than the row itself, so with one the bound is that of the other rows.

    Args:
        near: of a similar programme over the same workers: its promising columns are tried first.
    """
    if not _may_hold(programme):
        return None
    if programme.demand.chance_z <= 0:
        return _sift(programme, near)
    certain = _sift(replace(programme, demand=replace(programme.demand, chance_z=0.0)), near)
    if certain is None:
        return None
    guide = _with_chance(programme, certain)
    if guide is None:
        return replace(certain, programme=programme)
    return replace(guide, bound=certain.bound)


def priced(programme: Programme, near: Relaxation | None = None) -> Relaxation | None:
    """Solve the relaxation for its bound and its prices alone, which takes a fraction of the time.

    ``x`` has the workers that pay at these prices, which need not hold a row exactly. Rows of regions and chance have
    prices of their own: with them this is ``relax``.
    """
    if programme.demand.chance_z > 0 or programme.demand.share_without_a_region > 0:
        return relax(programme, near)
    if not _may_hold(programme):
        return None
    near_copy_usd = 0.0 if near is None else near.duals["relay", ""]

    def solve(working: Ints) -> tuple[Prices, Floats] | None:
        prices = best_prices(programme, working, near_copy_usd)
        return None if prices is None else (prices, reduced_at(programme, prices))

    found = _sifted(programme, near, solve)
    if found is None:
        return None
    prices, reduced = found
    origin_reduced = programme.origin_copy_usd - prices.copy
    return Relaxation(
        programme=programme,
        x=np.where(reduced < 0, programme.upper, programme.lower),
        bound=max(
            0.0,
            prices.rate * programme.rate_bought
            + _least(reduced, programme.lower, programme.upper)
            + origin_reduced * (programme.origin_feeds if origin_reduced < 0 else 1.0),
        ),
        reduced=reduced,
        duals={("rate", ""): prices.rate, ("relay", ""): prices.copy},
    )


def _may_hold(programme: Programme) -> bool:
    """Return whether the origin can send a copy, and some workers can give a rate that is finite."""
    return programme.origin_feeds >= 1 and bool(np.isfinite(programme.rate_bought)) and bool(programme.eligible.any())


def _with_chance(programme: Programme, near: Relaxation) -> Relaxation | None:
    """Solve with the tangent of the chance row placed at the solution itself; None if that has no solution."""
    useful = programme.useful[programme.eligible].sum()
    at = programme.eligible * (programme.rate_bought / useful)  # gives the rate, and varies as the pool on average
    for _ in range(DEVIATION_ROUNDS):
        programme = replace(programme, linearised_at=at)
        solved = _sift(programme, near)
        if solved is None:
            return None
        before, deviation = programme.deviation(at), programme.deviation(solved.x)
        if abs(deviation - before) <= DEVIATION_TOLERANCE * before:
            break
        at, near = solved.x, solved
    return solved


def _sift(programme: Programme, near: Relaxation | None) -> Relaxation | None:
    matrix = matrix_of(programme)

    def solve(working: Ints) -> tuple[tuple[Floats, Floats], Floats] | None:
        solved = _solve(matrix, working)
        return None if solved is None else (solved, matrix.cost + matrix.workers.T @ solved[1])

    found = _sifted(programme, near, solve)
    if found is None:
        return None
    (x, dual), reduced = found
    return _relaxation(matrix, x, dual, reduced)


def _sifted(
    programme: Programme, near: Relaxation | None, solve: Callable[[Ints], tuple[Found, Floats] | None]
) -> tuple[Found, Floats] | None:
    """Solve over more and more workers until no other would improve the solution.

    Args:
        solve: returns a solution over some workers and the reduced costs of all; None if there is none over these.
    """
    every = np.flatnonzero(programme.upper > 0)
    working = _first_columns(programme, every, near)
    tolerance = REDUCED_COST_TOLERANCE * max(float(programme.cost.max()), 1e-12)
    while True:
        found = solve(working)
        if found is None:
            if working.size == every.size:
                return None
            working = every
            continue
        _, reduced = found
        outside = np.setdiff1d(every, working, assume_unique=True)
        better = outside[reduced[outside] < -tolerance]
        if better.size == 0:
            return found
        working = np.union1d(working, better[np.argsort(reduced[better], kind="stable")[:ADDED_COLUMNS]])


def _first_columns(programme: Programme, every: Ints, near: Relaxation | None) -> Ints:
    """Return the columns of smallest reduced cost nearby; else the cheapest by rate and by copies, and all pinned."""
    if every.size <= WORKING_COLUMNS:
        return every
    pinned = every[programme.lower[every] > 0]
    if near is not None:
        return np.union1d(pinned, every[np.argpartition(near.reduced[every], NEAR_COLUMNS)[:NEAR_COLUMNS]])
    cost, share = programme.cost[every] + 1e-9, WORKING_COLUMNS // 2
    by_rate = every[np.argpartition(cost / programme.useful[every], share)[:share]]
    by_copies = every[np.argpartition(-programme.feeds[every] / cost, share)[:share]]
    return np.union1d(pinned, np.union1d(by_rate, by_copies))


def _solve(matrix: Matrix, working: Ints) -> tuple[Floats, Floats] | None:
    """Return x over all workers, and the duals (>= 0 for ``a x <= b``); None if no x holds the rows.

    Should the solver fail, all workers and duals of 0 are returned: their bound holds, though it says little.
    """
    from scipy.optimize import linprog
    from scipy.sparse import hstack

    found = linprog(
        np.concatenate([matrix.cost[working], matrix.extra_cost]),
        A_ub=hstack([matrix.workers[:, working], matrix.extra], format="csc"),
        b_ub=matrix.limit,
        bounds=np.column_stack(
            [
                np.concatenate([matrix.lower[working], matrix.extra_lower]),
                np.concatenate([np.ones(working.size), matrix.extra_upper]),
            ]
        ),
        method="highs",
    )
    if found.status == _INFEASIBLE:
        return None
    if found.status != 0:
        return np.ones(matrix.cost.size), np.zeros(matrix.limit.size)
    x = np.zeros(matrix.cost.size)
    x[working] = np.clip(found.x[: working.size], 0.0, 1.0)
    return x, np.maximum(0.0, -found.ineqlin.marginals)


def _relaxation(matrix: Matrix, x: Floats, dual: Floats, reduced: Floats) -> Relaxation:
    extra_reduced = matrix.extra_cost + matrix.extra.T @ dual
    bound = (
        -float(dual @ matrix.limit)
        + _least(reduced, matrix.lower, matrix.programme.upper)
        + _least(extra_reduced, matrix.extra_lower, matrix.extra_upper)
    )
    duals = {key: float(value) for key, value in zip(matrix.keys, dual / matrix.unit, strict=True)}
    return Relaxation(programme=matrix.programme, x=x, bound=max(0.0, bound), reduced=reduced, duals=duals)


def _least(reduced: Floats, lower: Floats, upper: Floats) -> float:
    return float(np.where(reduced > 0, reduced * lower, reduced * upper).sum())
