"""Solve a small mixed-integer programme over the workers in doubt, with all others fixed.

Reduced costs show in which workers an optimal set could still differ; among 80 of them HiGHS finds the best set in a
fraction of a second, where a programme over a whole pool does not (docs/capacity.md).

HiGHS prints a debug line of its own from ``scipy.optimize.milp`` in rare cases
(``HighsMipSolverData::transformNewIntegerFeasibleSolution``), through C's stdio, whatever ``disp`` says. Standard
output carries ``--json`` documents, so such lines are diverted to standard error.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from capacity.planner.columns import Ints, Mask
from capacity.planner.linear import Relaxation
from capacity.planner.matrix import matrix_of

# glibc and macOS: the variables that puts and printf read. Redirecting file descriptor 1 instead would also redirect
# what other threads print meanwhile.
_STREAMS = (("stdout", "stderr"), ("__stdoutp", "__stderrp"))


def c_prints_to_stderr() -> None:
    """Send what C code prints to standard error from now on, in this process; Python's own output stays as it is.

    Has no effect where the C library names its streams otherwise.
    """
    libc = ctypes.CDLL(None)
    for out, err in _STREAMS:
        try:
            stderr = ctypes.c_void_p.in_dll(libc, err)
            ctypes.c_void_p.in_dll(libc, out).value = stderr.value
        except ValueError:  # this library has no such name
            continue
        return


_INFEASIBLE = 2  # status of scipy.optimize.milp
CORE_COLUMNS = 80
WHOLE_POOL_COLUMNS = 250  # up to this many workers all are in the core, whose bound is then one for the whole pool


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The best set in a core.

    Args:
        chosen: None if none was found.
        bound: USD/h below which no set of whole workers costs at this split: inf where none exists, 0 where the core is
            not the whole pool, or rows are stricter than those of a set (the chance row's tangent).
    """

    chosen: Mask | None
    bound: float


def core_of(relaxation: Relaxation, chosen: Mask, columns: int = CORE_COLUMNS) -> Ints:
    """Return the free workers of the smallest absolute reduced cost; in a small pool, all free workers."""
    free = _free(relaxation)
    if free.size <= WHOLE_POOL_COLUMNS:
        return free
    doubt = np.abs(relaxation.reduced[free])
    swapped = chosen[free] != (relaxation.x[free] > 0.5)  # a worker that the swaps changed is in doubt because of that
    return free[np.lexsort((doubt, ~swapped))[:columns]]


def _free(relaxation: Relaxation) -> Ints:
    """Return the workers that may be on or off."""
    programme = relaxation.programme
    return np.flatnonzero((programme.upper > 0) & (programme.lower == 0))


def best_in_core(relaxation: Relaxation, chosen: Mask, time_limit_s: float, gap: float = 0.0) -> Core:
    """Return the best set found in time that differs from ``chosen`` in the core only.

    Args:
        gap: relative distance from the core's optimum at which the solver may stop.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a while to load: see capacity.planner.linear
    from scipy.sparse import hstack

    matrix, core = matrix_of(relaxation.programme), core_of(relaxation, chosen)
    others = chosen.copy()
    others[core] = False
    extra = matrix.extra_cost.size
    c_prints_to_stderr()
    found = milp(
        np.concatenate([matrix.cost[core], matrix.extra_cost]),
        integrality=np.concatenate([np.ones(core.size), np.zeros(extra)]),
        bounds=Bounds(
            np.concatenate([np.zeros(core.size), matrix.extra_lower]),
            np.concatenate([np.ones(core.size), matrix.extra_upper]),
        ),
        constraints=LinearConstraint(
            hstack([matrix.workers[:, core], matrix.extra], format="csc"),
            ub=matrix.limit - matrix.workers @ others.astype(np.float64),
        ),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )
    whole = core.size == _free(relaxation).size and relaxation.programme.demand.chance_z <= 0
    if found.x is None:
        return Core(None, np.inf if whole and found.status == _INFEASIBLE else 0.0)
    fixed_usd = float(matrix.cost[others].sum())
    others[core] = found.x[: core.size] > 0.5
    known = whole and found.mip_dual_bound is not None
    return Core(others, max(0.0, fixed_usd + float(found.mip_dual_bound)) if known else 0.0)
