"""`rollcast capacity validate`: simulate a plan and compare the results with its predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from capacity.questions.plan_json import read_plan
from capacity.reports.tables import Column, Sheet
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets
from rollcast.runtime.errors import PlanFileError

if TYPE_CHECKING:  # the simulator is imported when it is used
    from rollcast.sim.validation import Validation

SCHEMA = "rollcast.capacity.validate/1"


def validate(
    file: Path, /, *, steps: int = 80, seed: int = 0, tolerance: float = 0.1, form: FormatOption = "table"
) -> int:
    """Simulate the plan's workers with the real cores on virtual time, and compare the results with the predictions.

    The exit status is 0 if every figure is within the tolerance, and 2 if not or if an invariant was violated.

    Parameters
    ----------
    file
        A plan that `rollcast capacity plan --format json` wrote.
    steps
        Number of learner steps to measure, after a warm-up.
    seed
        Seed of all random choices.
    tolerance
        Relative tolerance of each figure.
    form
        Output format: table, json, csv or html.
    """
    made = read_plan(file).plan
    if not made.feasible:
        raise PlanFileError(f"{file} is a plan without workers", cause=made.infeasible.what if made.infeasible else "")
    from rollcast.sim.validation import validate_plan

    found = validate_plan(made, seed=seed, steps=steps)
    worst = max(found.errors().values(), default=0.0)
    holds = worst <= tolerance and not found.violations
    if form == "json":
        print_json({"schema": SCHEMA, "holds": holds, "tolerance": tolerance} | found.to_json())
        return FEASIBLE if holds else INFEASIBLE
    note([f"simulated {found.steps} learner steps after {found.warm_up_steps} warm-up steps"])
    print_sheets([_sheet(found, tolerance, holds)], form, title="validation")
    return FEASIBLE if holds else INFEASIBLE


def _sheet(found: Validation, tolerance: float, holds: bool) -> Sheet:
    """Return a row for each figure."""
    predicted, simulated, errors = found.predicted, found.simulated, found.errors()
    names = {"utilisation": "learner utilisation", "t_bcast_s": "T_bcast, s", "mean_staleness": "mean staleness, steps"}
    rows = tuple(
        (name, getattr(predicted, key), getattr(simulated, key), errors[key] * 100 if key in errors else None)
        for key, name in names.items()
    )
    columns = (
        Column("figure", "figure"),
        Column("predicted", "predicted", 3),
        Column("simulated", "simulated", 3),
        Column("error_percent", "error %", 1),
    )
    verdict = "holds" if holds else "does not hold"
    line = (
        f"{verdict} within {tolerance:.0%}: {found.workers} workers, {found.steps} steps, seed {found.seed}, "
        f"{found.violations} violations"
    )
    return Sheet("predicted and simulated", columns, rows, lines=(line,))
