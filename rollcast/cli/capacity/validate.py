"""`rollcast capacity validate`: simulate the run that a plan promises, and compare it with the promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from capacity.questions.plan_json import read_plan
from capacity.reports.tables import Column, Sheet
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets, working
from rollcast.runtime.errors import PlanFileError

if TYPE_CHECKING:  # the simulator is imported when it is used
    from rollcast.sim.validation import Kept

SCHEMA = "rollcast.capacity.validate/2"


def validate(
    file: Path, /, *, steps: int = 80, seed: int = 0, tolerance: float = 0.07, form: FormatOption = "table"
) -> int:
    """Simulate the run that the plan promises, with the real cores on virtual time, and check that it keeps the plan.

    Groups, lengths, the conduct at new versions and publishing are those of the plan. The exit status is 0 if
    utilisation, dropped share, age and T_bcast reach what the plan states and no invariant was violated, else 2.

    Parameters
    ----------
    file
        A plan that `rollcast capacity plan --out` saved.
    steps
        Number of learner steps to measure, after a warm-up.
    seed
        Seed of all random choices.
    tolerance
        Share by which utilisation may be below the plan's figure, and age and T_bcast above it.
    form
        Output format: table, json, csv or html.
    """
    made = read_plan(file).plan
    if not made.feasible:
        raise PlanFileError(f"{file} is a plan without workers", cause=made.infeasible.what if made.infeasible else "")
    if made.expected is None:
        raise PlanFileError(
            f"{file} does not state what its run is expected to do", fix="make it with `rollcast capacity plan`"
        )
    note(
        [f"Simulating {len(made.chosen)} workers for {steps} learner steps after a warm-up; large plans take minutes."]
    )
    with working("loading the simulator") as status:
        from rollcast.sim.validation import validate_plan

        status.update(f"simulating the warm-up before {steps} learner steps")
        kept = validate_plan(
            made,
            seed=seed,
            steps=steps,
            tolerance=tolerance,
            progress=lambda share: status.update(f"simulated {share:.0%} of {steps} learner steps"),
        )
    if form == "json":
        print_json({"schema": SCHEMA, "tolerance": tolerance} | kept.to_json())
    else:
        found = kept.validation
        note([f"simulated {found.steps} learner steps after {found.warm_up_steps} warm-up steps"])
        print_sheets([_sheet(kept)], form, title="validation")
    return FEASIBLE if kept.holds else INFEASIBLE


def _sheet(kept: Kept) -> Sheet:
    """Return a row for each figure."""
    promised, simulated, found = kept.promised, kept.validation.simulated, kept.validation
    rows = (
        ("learner utilisation", promised.utilisation, simulated.utilisation),
        ("dropped share", promised.dropped_share, simulated.dropped_share),
        ("T_bcast p95, s", promised.t_bcast_p95_s, simulated.t_bcast_p95_s),
        ("mean age, steps", promised.mean_age, simulated.mean_staleness),
    )
    columns = (Column("figure", "figure"), Column("promised", "promised", 3), Column("simulated", "simulated", 3))
    verdict = "holds" if kept.holds else f"does not hold: {'; '.join(kept.broken)}"
    lines = (verdict, f"{found.workers} workers, {found.steps} steps, seed {found.seed}")
    return Sheet("promised and simulated", columns, rows, lines=lines)
