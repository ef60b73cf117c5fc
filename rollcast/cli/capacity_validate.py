"""`rollcast capacity validate`: a plan through the simulator, predicted beside simulated."""

from __future__ import annotations

from pathlib import Path

from capacity.plan_json import read_plan
from capacity.sheets import Column, Sheet
from rollcast.cli.capacity_output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets
from rollcast.runtime.errors import PlanFileError

SCHEMA = "rollcast.capacity.validate/1"


def validate(
    file: Path, /, *, steps: int = 80, seed: int = 0, tolerance: float = 0.1, form: FormatOption = "table"
) -> int:
    """Run the chosen set under the real cores on virtual time, and compare with what the model predicts.

    Exit status 0: every figure is within the tolerance; 2: one is not, or an invariant was broken.

    Parameters
    ----------
    file
        a plan, as `rollcast capacity plan --format json` writes it.
    steps
        of the learner that are counted, after a warm-up.
    seed
        of everything that is drawn.
    tolerance
        relative, of each figure.
    form
        table, json, csv or html.
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
    names = {
        "utilisation": ("learner utilisation", found.predicted.utilisation, found.simulated.utilisation),
        "t_bcast_s": ("T_bcast, s", found.predicted.t_bcast_s, found.simulated.t_bcast_s),
        "mean_staleness": ("mean staleness, steps", found.predicted.mean_staleness, found.simulated.mean_staleness),
    }
    errors = found.errors()
    rows = tuple(
        (name, predicted, simulated, errors[key] * 100 if key in errors else None)
        for key, (name, predicted, simulated) in names.items()
    )
    columns = (
        Column("figure", "figure"),
        Column("predicted", "predicted", 3),
        Column("simulated", "simulated", 3),
        Column("error_percent", "error %", 1),
    )
    verdict = "holds" if holds else "does not hold"
    line = f"{verdict} within {tolerance:.0%}: {found.workers} workers, {found.steps} steps, seed {seed}, {found.violations} violations"
    note([f"simulated {found.steps} learner steps after {found.warm_up_steps} to warm up"])
    print_sheets([Sheet("predicted beside simulated", columns, rows, lines=(line,))], form, title="validation")
    return FEASIBLE if holds else INFEASIBLE
