"""`rollcast capacity explain`: explain what limits a plan, its shadow prices, and what would change the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capacity.catalogue.models import models
from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.planner import DEFAULTS
from capacity.planner.plans import Plan
from capacity.questions.explain import explain as explained
from capacity.questions.inverse import best_knob, one_more_dollar, smallest_staleness
from capacity.questions.inverse import largest_model as largest_of
from capacity.questions.plan_json import PlanDocument, read_plan
from capacity.reports.explanation import explanation_sheets
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, scenario
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets, working
from rollcast.cli.capacity.plan import planned
from rollcast.runtime.errors import ConfigError, PoolError

SCHEMA = "rollcast.capacity.explain/1"


def explain(
    file: Path | None = None,
    /,
    *,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    more_usd_per_hour: float = 1.0,
    largest_model: Annotated[bool, Parameter(negative=())] = False,
    form: FormatOption = "table",
) -> int:
    """Explain a plan: binding rows with their shadow prices, the first worker left out, and what would change the plan.

    The exit status is 0 if the plan is feasible, and 2 if not.

    Parameters
    ----------
    file
        A plan that `rollcast capacity plan --out` saved. Without it, a plan is made from the options.
    more_usd_per_hour
        Extra budget in US dollars per hour whose effect is shown.
    largest_model
        Also find the largest model of the catalogue that a set of workers could serve with the same T_train.
    form
        Output format: table, json, csv (single changes only) or html.
    """
    if largest_model and file is not None:
        raise ConfigError(
            "--largest-model needs a pool, because a plan has the speeds of one model only", fix="give one with --pool"
        )
    with working("planning") as status:
        document = read_plan(file) if file is not None else planned(scenario(pool, demand))
        made = document.plan
        status.update("planning with single changes")
        if form == "json":
            answer = _json(document, more_usd_per_hour)
        else:
            sheets = explanation_sheets(made, explained(made), one_more_dollar(made, more_usd_per_hour))
            lines = _smallest_staleness(made) if form == "table" else []
            if largest_model:
                status.update("planning for the models of the catalogue")
                lines.append(_largest_model(pool, demand or DemandOptions()))
    if form == "json":
        print_json(answer)
        return FEASIBLE if made.feasible else INFEASIBLE
    note([f"pool {document.inputs.pool}", f"demand {document.inputs.demand}"])
    print_sheets(sheets, form, title="explanation")
    for line in lines:
        print(line)
    return FEASIBLE if made.feasible else INFEASIBLE


def _smallest_staleness(made: Plan) -> list[str]:
    """Return the smallest staleness limit in a sentence; empty if there is none."""
    workers = [one.worker for one in made.candidates]
    smallest = smallest_staleness(made.demand, workers)
    if smallest is None:
        return []
    return [f"The smallest S for this pool is {smallest.demand.staleness_limit}, for {smallest.usd_per_hour:,.2f} $/h."]


def _largest_model(pool: PoolOptions | None, demand: DemandOptions) -> str:
    """Return the answer in words. A model that fits into no worker's memory has no workers."""
    step_s = scenario(pool, demand).demand.t_train_s
    demand = replace(demand, setting=(*demand.setting, f"demand.t_train_s={step_s}"))

    def asked(name: str) -> tuple[Demand, Sequence[Worker]]:
        try:
            found = scenario(pool, replace(demand, model=name))
        except PoolError:
            return scenario(pool, demand).demand, ()
        return found.demand, found.workers

    by_size = sorted(models().values(), key=lambda model: -model.parameters)
    largest = largest_of([model.name for model in by_size], asked)
    if largest is None:
        return "No model of the catalogue has a sufficient set of workers."
    name, made = largest
    return f"The largest model of the catalogue with a sufficient set is {name}, for {made.usd_per_hour:,.2f} $/h."


def _json(document: PlanDocument, more_usd_per_hour: float) -> dict[str, object]:
    made = document.plan
    found = explained(made)
    workers = [one.worker for one in made.candidates]
    bought, smallest = one_more_dollar(made, more_usd_per_hour), smallest_staleness(made.demand, workers)
    knob = best_knob(made.demand, workers, DEFAULTS)
    return {
        "schema": SCHEMA,
        "feasible": made.feasible,
        "binding": list(found.binding),
        "what": found.what,
        "shadow_prices": [
            {"row": one.row.name, "subject": one.row.subject, "per": one.per, "usd_per_hour": one.usd_per_hour}
            for one in found.shadow_prices
        ],
        "first_left_out": found.first_left_out and found.first_left_out.worker.worker_id,
        "last_taken": found.last_taken and found.last_taken.worker.worker_id,
        "changes": [_finite(asdict(one)) for one in found.changes],
        "remedies": list(made.infeasible.remedies) if made.infeasible is not None else [],
        "one_more_dollar": None if bought is None else asdict(bought),
        "smallest_staleness": smallest and smallest.demand.staleness_limit,
        "best_knob": None if knob is None else _finite(asdict(knob)),
    }


def _finite(values: dict[str, object]) -> dict[str, object]:
    """Replace infinities by None, as JSON has none: an infinity marks a change that no set of workers can follow."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
