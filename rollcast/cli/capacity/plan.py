"""`rollcast capacity plan`: the cheapest set of workers that keeps the learner busy, with its certificate.

What the planner's plots need computed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capacity.model.run_rules import Conduct
from capacity.planner.planner import plan as choose
from capacity.planner.plans import Plan
from capacity.predict.prediction import predict
from capacity.questions.horizon import Forecast, forecast, uncertainty_of
from capacity.questions.plan_json import PlanDocument, document_of, encode
from capacity.questions.scenario import Scenario
from capacity.reports.forecast import forecast_sheet
from capacity.reports.plan import (
    assumption_sheet,
    candidate_sheet,
    in_order,
    infeasible_lines,
    input_lines,
    row_sheet,
    short_sheet,
)
from capacity.reports.plots import Point, utilisation_against_workers
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, now, scenario
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_sheets
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.version import software_version
from rollcast.sim.validation import publish_s


def plan(
    *,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    steps: int | None = None,
    deadline_hours: float | None = None,
    budget_usd: float | None = None,
    seed: int = 0,
    all_rows: Annotated[bool, Parameter(name="--all", negative=())] = False,
    form: FormatOption = "table",
    plot: Path | None = None,
) -> int:
    """Choose the cheapest set of workers that keeps the learner busy within the staleness limit.

    Exit status 0: there is one; 2: there is none, and the answer says why and which single changes help.

    Parameters
    ----------
    steps
        of the learner: total $ and hours of so many, with p10 to p90, learner and storage included.
    deadline_hours, budget_usd
        of the whole run, with --steps: how likely each is kept.
    seed
        of the forecast's draws.
    all_rows
        a row for every worker, those that are off too.
    form
        table, json (a document with a versioned schema), csv (the workers) or html.
    plot
        draw utilisation against workers into this .png or .svg file.
    """
    if plot is not None:
        from rollcast.runtime.charts import check_path

        check_path(plot)
    document = planned(scenario(pool, demand))
    whole = None
    if steps is not None and document.plan.feasible:
        whole = _forecast(document, steps, seed, deadline_hours, budget_usd)
    show(replace(document, forecast=whole), form, all_rows=all_rows)
    if plot is not None:
        draw_utilisation(plot, document.plan)
    return FEASIBLE if document.plan.feasible else INFEASIBLE


def _forecast(
    document: PlanDocument, steps: int, seed: int, deadline_hours: float | None, budget_usd: float | None
) -> Forecast:
    if steps < 1:
        raise ConfigError(f"--steps is {steps}", fix="give at least 1")
    sure = uncertainty_of(document.assumptions)
    return forecast(document.plan, steps, sure, seed=seed, deadline_hours=deadline_hours, budget_usd=budget_usd)


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
        sheets[-1] = replace(workers, lines=(*infeasible_lines(made), *workers.lines))
        sheets += [row_sheet(made), *([forecast_sheet(document.forecast)] if document.forecast is not None else [])]
    print_sheets(sheets, form, title="plan", main=1)
    if form == "table":
        for line in infeasible_lines(made):
            print(line)
        if document.forecast is not None:
            print_sheets([forecast_sheet(document.forecast)], form, title="forecast")


_POINTS = 8  # of the curve: each is a prediction, a second or so
_BEYOND = 1.5  # the curve goes on to so many times the plan's workers
_WARM_UP_STEPS, _STEPS = 10, 20


def draw_utilisation(path: Path, made: Plan) -> None:
    """Utilisation as predicted with the first k workers of the plan's order, and some beyond."""
    usable = [(one.worker, one.speed) for one in in_order(made.candidates) if one.speed is not None and not one.barred]
    chosen = len(made.chosen)
    most = min(len(usable), max(chosen + 4, round(chosen * _BEYOND)))
    counts = sorted({chosen} | {max(1, round(most * number / _POINTS)) for number in range(1, _POINTS + 1)} - {0})
    curve = [Point(0, 0.0)]
    demand = made.demand
    conduct = Conduct(whole_batches=True, t_publish_s=publish_s(demand))
    for count in filter(None, counts):
        found = predict(demand, usable[:count], conduct, warm_up_steps=_WARM_UP_STEPS, steps=_STEPS)
        curve.append(Point(count, found.utilisation))
    subtitle = (
        f"predicted; S = {demand.staleness_limit}, kappa = {demand.publish_every_steps}, {demand.topology}, "
        f"{demand.rollouts_per_step} rollouts a step of {demand.t_train_s:g} s"
    )
    utilisation_against_workers(path, curve, chosen, subtitle)
