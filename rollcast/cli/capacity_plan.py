"""`rollcast capacity plan`: the cheapest set of workers that keeps the learner busy, with its certificate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capacity.plan_json import PlanDocument, document_of, encode
from capacity.planner import plan as choose
from capacity.plans import Plan
from capacity.report import assumption_sheet, candidate_sheet, infeasible_lines, input_lines, row_sheet, short_sheet
from capacity.scenario import Scenario
from rollcast.cli.capacity_inputs import DemandOptions, PoolOptions, now, scenario
from rollcast.cli.capacity_output import FEASIBLE, INFEASIBLE, FormatOption, note, print_sheets
from rollcast.runtime.version import software_version

Flag = Annotated[bool, Parameter(negative=())]


def plan(
    *,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    all_rows: Annotated[bool, Parameter(name="--all", negative=())] = False,
    form: FormatOption = "table",
    plot: Path | None = None,
) -> int:
    """Choose the cheapest set of workers that keeps the learner busy within the staleness limit.

    Exit status 0: there is one; 2: there is none, and the answer says why and which single changes help.

    Parameters
    ----------
    all_rows
        a row for every worker, those that are off too.
    form
        table, json (a document with a versioned schema), csv (the workers) or html.
    plot
        draw utilisation against workers into this .png or .svg file.
    """
    if plot is not None:
        from capacity.plots import check_path

        check_path(plot)
    asked = scenario(pool, demand)
    document = planned(asked)
    show(document, form, all_rows=all_rows)
    if plot is not None:
        from rollcast.cli.capacity_plots import draw_utilisation

        draw_utilisation(plot, document.plan)
    return FEASIBLE if document.plan.feasible else INFEASIBLE


def planned(asked: Scenario) -> PlanDocument:
    """The plan of a scenario with everything that it was made from."""
    return documented(choose(asked.demand, asked.workers), asked)


def documented(made: Plan, asked: Scenario) -> PlanDocument:
    """A plan with everything that it was made from."""
    return document_of(
        made, inputs=asked.inputs, assumptions=asked.assumptions, software=software_version(), made_at=now()
    )


def show(document: PlanDocument, form: FormatOption, *, all_rows: bool = False) -> None:
    """A plan on stdout: assumptions first, then workers, then what limits them; what was skipped on stderr."""
    made = document.plan
    note(input_lines(document.inputs))
    if form == "json":
        sys.stdout.write(encode(document).decode() + "\n")
        return
    if form == "csv" and not made.feasible:
        note(infeasible_lines(made))
    workers = candidate_sheet(made) if all_rows or form != "table" else short_sheet(made)
    sheets = [assumption_sheet(document.assumptions)]
    if made.feasible or all_rows or form != "table":
        sheets.append(workers)
    if form == "html":
        sheets.append(row_sheet(made))
    print_sheets(sheets, form, title="plan", main=1)
    if form == "table":
        for line in infeasible_lines(made):
            print(line)
