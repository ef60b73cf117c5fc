"""`rollcast capacity plan`: choose the cheapest set of workers that keeps the learner busy, with its lower bound."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capacity.model.units import SECONDS_PER_HOUR
from capacity.planner.plans import Plan
from capacity.predict.prediction import predict
from capacity.questions.goal import Goal, chosen_for, verdict_of
from capacity.questions.plan_json import PlanDocument, document_of, encode
from capacity.questions.promise import promised, promises
from capacity.questions.scenario import Scenario
from capacity.reports.plan import (
    assumption_sheet,
    bill_sheet,
    candidate_sheet,
    forecast_sheet,
    in_order,
    infeasible_lines,
    input_lines,
    row_sheet,
    short_sheet,
    verdict_lines,
)
from capacity.reports.plots import Point, utilisation_against_workers
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, now, scenario
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_sheets, working
from rollcast.cli.durations import seconds_of
from rollcast.runtime.errors import ConfigError, RunFolderError
from rollcast.runtime.run_folder import write_atomically
from rollcast.runtime.version import software_version

_USD = re.compile(r"\$?(\d+(?:\.\d+)?)(?:usd|\$)?", re.IGNORECASE)


def plan(
    *,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    steps: int | None = None,
    deadline: str | None = None,
    budget: str | None = None,
    seed: int = 0,
    all_rows: Annotated[bool, Parameter(name="--all", negative=())] = False,
    form: FormatOption = "table",
    out: Path | None = None,
    plot: Path | None = None,
) -> int:
    """Choose the cheapest set of workers that keeps the learner busy within the staleness limit.

    The exit status is 0 if there is one that keeps the deadline and the budget at the median, and 2 if not; then the
    answer has the reason and the single changes that help.

    Parameters
    ----------
    steps
        Number of learner steps to forecast: total cost and hours with p10 to p90, including learner and storage.
    deadline
        Time for these steps, for example 7h or 1d12h: the cheapest learner and workers that keep it are chosen.
    budget
        Money for these steps, for example 200usd: for workers, traffic, learner, coordinator and storage together.
    seed
        Seed of the forecast's samples.
    all_rows
        Show all workers, including those that are off.
    form
        Output format: table, json (a document with a versioned schema), csv (workers only) or html.
    out
        File for the plan as a JSON document, which explain, validate, replan, diff and apply read.
    plot
        Plot utilisation against the number of workers to this .png or .svg file.
    """
    if plot is not None:
        from rollcast.runtime.charts import check_path

        check_path(plot)
    if out is not None and not out.absolute().parent.is_dir():
        raise RunFolderError(
            f"cannot write the plan {out}",
            cause=f"there is no folder {out.parent}",
            fix="create it, or name another one",
        )
    goal = _goal(steps, deadline, budget)
    with working("planning"):
        asked = scenario(pool, demand)
        document = planned(asked) if goal is None else planned_for(goal, _scenarios(asked, goal, pool, demand), seed)
    if out is not None:
        save(out, document)  # first: a reader of what is printed may close the pipe
    show(document, form, all_rows=all_rows)
    if out is None and form == "table" and document.plan.feasible:
        note(["`--out plan.json` saves this plan; `rollcast capacity validate plan.json` simulates it."])
    if plot is not None:
        with working("predicting the utilisation with other numbers of workers"):
            plot_utilisation(plot, document.plan)
    kept = document.verdict is None or document.verdict.kept
    return FEASIBLE if document.plan.feasible and kept else INFEASIBLE


def _goal(steps: int | None, deadline: str | None, budget: str | None) -> Goal | None:
    if steps is None:
        if deadline is not None or budget is not None:
            option = "--deadline" if deadline is not None else "--budget"
            raise ConfigError(f"{option} is for a number of learner steps", fix="give the number with --steps")
        return None
    if steps < 1:
        raise ConfigError(f"--steps {steps} is out of range", fix="use at least 1")
    hours = None if deadline is None else seconds_of(deadline) / SECONDS_PER_HOUR
    return Goal(steps=steps, deadline_hours=hours, budget_usd=None if budget is None else _usd(budget))


def _usd(text: str) -> float:
    found = _USD.fullmatch(text.strip().replace(" ", "").replace(",", ""))
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"{text!r} is not an amount of money", fix="write US dollars, such as 200usd")
    return float(found[1])


def _scenarios(
    asked: Scenario, goal: Goal, pool: PoolOptions | None, demand: DemandOptions | None
) -> Iterator[Scenario]:
    """Yield the scenario and, for a deadline, those of the catalogue's other learners where none was asked for."""
    yield asked
    if goal.deadline_hours is None:
        return
    options = demand or DemandOptions()
    for machine in asked.central.others:
        setting = (*options.setting, f"demand.learner_hardware={machine.hardware}")
        yield scenario(pool, replace(options, setting=setting))


def planned(asked: Scenario) -> PlanDocument:
    """Plan a scenario and return the plan with its inputs."""
    return documented(_promised(asked), asked)


def _promised(asked: Scenario) -> Plan:
    return promised(asked.demand, asked.workers, headroom_least=asked.headroom_least)


def _promises(asked: Scenario) -> list[Plan]:
    return promises(asked.demand, asked.workers, headroom_least=asked.headroom_least)


def planned_for(goal: Goal, scenarios: Iterator[Scenario], seed: int) -> PlanDocument:
    """Plan for a number of steps: the first scenario, and the others where it does not keep the goal."""
    plans: list[tuple[Scenario, Plan]] = []
    for asked in scenarios:
        made = _promises(asked) if goal.limits else [_promised(asked)]
        if not made[0].feasible:
            if not plans:
                return documented(made[0], asked)
            continue
        plans += [(asked, one) for one in made]
        choice = chosen_for(goal, plans, seed=seed)
        if goal.kept_by(choice.forecast):
            break
    verdict = verdict_of(goal, choice, seed=seed) if goal.limits else None
    return replace(documented(choice.plan, choice.scenario), forecast=choice.forecast, verdict=verdict)


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


def save(path: Path, document: PlanDocument) -> None:
    """Write a plan as JSON, and say which command reads it next.

    Raises:
        RunFolderError: the file cannot be written.
    """
    try:
        write_atomically(path, encode(document) + b"\n", mode=0o644)
    except OSError as error:
        fix = "check that its folder exists, that you may write there, and that its disk has space"
        raise RunFolderError(f"cannot write the plan {path}", cause=error.strerror or str(error), fix=fix) from None
    file = shlex.quote(str(path))
    if document.plan.feasible:
        next_step = f"`rollcast capacity validate {file}` simulates the promised run, `apply {file}` has a run start it"
    else:
        next_step = f"it has no workers, and `rollcast capacity explain {file}` says why"
    note([f"Saved {path}; {next_step}."])


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
        sheets.append(row_sheet(made))
    if made.feasible:
        sheets.append(bill_sheet(made))
    if document.forecast is not None:
        sheets.append(forecast_sheet(document.forecast, document.verdict))
    print_sheets(sheets, form, title="plan", main=1)
    if form == "table":
        for line in infeasible_lines(made):
            print(line)
    elif form == "csv":
        note(verdict_lines(document.verdict))


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
