"""`rollcast capacity explain`: what limits a plan, what that is worth, and what would change the answer."""

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
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets
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
    """Say what limits a plan: binding rows with their shadow prices, the first worker left out, what would change it.

    Exit status 0: the plan is feasible; 2: it is not.

    Parameters
    ----------
    file
        a plan, as `rollcast capacity plan --format json` writes it; without it one is made from the options.
    more_usd_per_hour
        money to say the use of.
    largest_model
        say which model of the catalogue is the largest that there is a set for, all else as asked, T_train too.
    form
        table, json, csv (single changes) or html.
    """
    if largest_model and file is not None:
        raise ConfigError("--largest-model needs the pool, and a plan has the speeds of one model", fix="give --pool")
    document = read_plan(file) if file is not None else planned(scenario(pool, demand))
    made = document.plan
    if form == "json":
        print_json(_json(document, more_usd_per_hour))
        return FEASIBLE if made.feasible else INFEASIBLE
    note([f"pool {document.inputs.pool}", f"demand {document.inputs.demand}"])
    bought = one_more_dollar(made, more_usd_per_hour)
    print_sheets(explanation_sheets(made, explained(made), bought), form, title="explanation")
    if form == "table":
        _print_smallest_staleness(made)
    if largest_model:
        print(_largest_model(pool, demand or DemandOptions()))
    return FEASIBLE if made.feasible else INFEASIBLE


def _print_smallest_staleness(made: Plan) -> None:
    workers = [one.worker for one in made.candidates]
    smallest = smallest_staleness(made.demand, workers)
    if smallest is not None:
        limit, cost = smallest.demand.staleness_limit, smallest.usd_per_hour
        print(f"the smallest S for this pool is {limit}, for {cost:,.2f} $/h")


def _largest_model(pool: PoolOptions | None, demand: DemandOptions) -> str:
    """In words. A model that fits into no worker's memory has no workers."""

    def asked(name: str) -> tuple[Demand, Sequence[Worker]]:
        try:
            found = scenario(pool, replace(demand, model=name))
        except PoolError:
            return scenario(pool, demand).demand, ()
        return found.demand, found.workers

    by_size = sorted(models().values(), key=lambda model: -model.parameters)
    largest = largest_of([model.name for model in by_size], asked)
    if largest is None:
        return "there is a set for no model of the catalogue"
    name, made = largest
    return f"the largest model of the catalogue with a set is {name}, for {made.usd_per_hour:,.2f} $/h"


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
    """JSON has no infinity: null where there is no set."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
