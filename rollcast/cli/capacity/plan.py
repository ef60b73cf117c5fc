"""`rollcast capacity plan`: choose the cheapest set of workers that keeps the learner busy, with its lower bound."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capacity.planner.plans import Plan
from capacity.predict.prediction import predict
from capacity.questions.horizon import Forecast, forecast, uncertainty_of
from capacity.questions.plan_json import PlanDocument, document_of, encode
from capacity.questions.promise import promised
from capacity.questions.scenario import Scenario
from capacity.reports.plan import (
    assumption_sheet,
    candidate_sheet,
    forecast_sheet,
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

    The exit status is 0 if there is one, and 2 if not; then the answer has the reason and the single changes that help.

    Parameters
    ----------
    steps
        Number of learner steps to forecast: total cost and hours with p10 to p90, including learner and storage.
    deadline_hours, budget_usd
        Deadline and budget of the whole run, with --steps: how likely each is kept.
    seed
        Seed of the forecast's samples.
    all_rows
        Show all workers, including those that are off.
    form
        Output format: table, json (a document with a versioned schema), csv (workers only) or html.
    plot
        Plot utilisation against the number of workers to this .png or .svg file.
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
        plot_utilisation(plot, document.plan)
    return FEASIBLE if document.plan.feasible else INFEASIBLE


def _forecast(
    document: PlanDocument, steps: int, seed: int, deadline_hours: float | None, budget_usd: float | None
) -> Forecast:
    if steps < 1:
        raise ConfigError(f"--steps {steps} is out of range", fix="use at least 1")
    sure = uncertainty_of(document.assumptions)
    return forecast(document.plan, steps, sure, seed=seed, deadline_hours=deadline_hours, budget_usd=budget_usd)


def planned(asked: Scenario) -> PlanDocument:
    """Plan a scenario and return the plan with its inputs."""
    return documented(promised(asked.demand, asked.workers), asked)


def documented(made: Plan, asked: Scenario) -> PlanDocument:
    """Return a plan with its inputs, as written to files."""
    return document_of(
        made,
        inputs=asked.inputs,
        assumptions=asked.assumptions,
        software=software_version(),
        made_at=now(),
        machines=asked.machines,
    )


def show(document: PlanDocument, form: FormatOption, *, all_rows: bool = False) -> None:
    """Print a plan on stdout: assumptions, workers, and what limits them; skipped rows go to stderr."""
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


_POINTS = 8  # of the curve; each is a prediction that takes about a second
_BEYOND = 1.5  # the curve continues to this multiple of the plan's workers
_WARM_UP_STEPS, _STEPS = 10, 20


def plot_utilisation(path: Path, made: Plan) -> None:
    """Plot the predicted utilisation with the first k workers of the plan's order, and some beyond the plan."""
    usable = [(one.worker, one.speed) for one in in_order(made.candidates) if one.speed is not None and not one.barred]
    chosen = len(made.chosen)
    most = min(len(usable), max(chosen + 4, round(chosen * _BEYOND)))
    counts = sorted({chosen} | {max(1, round(most * number / _POINTS)) for number in range(1, _POINTS + 1)} - {0})
    curve = [Point(0, 0.0)]
    demand = made.demand
    for count in filter(None, counts):
        found = predict(demand, usable[:count], demand.conduct, warm_up_steps=_WARM_UP_STEPS, steps=_STEPS)
        curve.append(Point(count, found.utilisation))
    subtitle = (
        f"predicted; S = {demand.staleness_limit}, kappa = {demand.publish_every_steps}, {demand.topology}, "
        f"{demand.rollouts_per_step} rollouts per step of {demand.t_train_s:g} s"
    )
    utilisation_against_workers(path, curve, chosen, subtitle)
