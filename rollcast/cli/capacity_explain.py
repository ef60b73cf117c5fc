"""`rollcast capacity explain`: what limits a plan, what that is worth, and what would change the answer."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from capacity.explain_report import explanation_sheets
from capacity.explaining import explain as explained
from capacity.plan_json import PlanDocument, read_plan
from capacity.planner import DEFAULTS
from capacity.plans import Plan
from capacity.questions import best_knob, one_more_dollar, smallest_staleness
from rollcast.cli.capacity_inputs import DemandOptions, PoolOptions, scenario
from rollcast.cli.capacity_output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets
from rollcast.cli.capacity_plan import planned

SCHEMA = "rollcast.capacity.explain/1"


def explain(
    file: Path | None = None,
    /,
    *,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    more_usd_per_hour: float = 1.0,
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
    form
        table, json, csv (single changes) or html.
    """
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
    return FEASIBLE if made.feasible else INFEASIBLE


def _print_smallest_staleness(made: Plan) -> None:
    workers = [one.worker for one in made.candidates]
    smallest = smallest_staleness(made.demand, workers)
    if smallest is not None:
        limit, cost = smallest.demand.staleness_limit, smallest.usd_per_hour
        print(f"the smallest S for this pool is {limit}, for {cost:,.2f} $/h")


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
