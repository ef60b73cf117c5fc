"""`rollcast capacity compare`: a plan's bill beside generating everything on the learner's own class of GPUs."""

from __future__ import annotations

from dataclasses import replace

from capacity.questions.comparison import compared
from capacity.reports.comparison import ASSUMED, comparison_sheet
from capacity.reports.tables import records_of
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, scenario
from rollcast.cli.capacity.output import FEASIBLE, INFEASIBLE, FormatOption, note, print_json, print_sheets, working

SCHEMA = "rollcast.capacity.compare/1"


def compare(
    *,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    models: str = "",
    seed: int = 0,
    form: FormatOption = "table",
) -> int:
    """Compare a plan's bill with generating on the learner's own class of GPUs: on the same ones, or on more of them.

    The exit status is 0 if the plan of every model is feasible, and 2 if not.

    Parameters
    ----------
    models
        Models to compare, for example qwen3-4b,qwen3-8b; the demand's if not given.
    seed
        Seed of the lengths of synchronous batches.
    form
        Output format: table, json, csv or html.
    """
    options = demand or DemandOptions()
    names = [name.strip() for name in models.split(",") if name.strip()]
    with working("planning, and sampling synchronous batches"):
        asked = [scenario(pool, replace(options, model=name)) for name in names] or [scenario(pool, options)]
        found = [compared(one, seed=seed) for one in asked]
    sheet = comparison_sheet(found)
    if form == "json":
        inputs = {"pool": asked[0].inputs.pool, "demand": asked[0].inputs.demand, "assumed": ASSUMED}
        print_json({"schema": SCHEMA, "rows": records_of(sheet)} | inputs)
    else:
        note([f"pool {asked[0].inputs.pool}", f"demand {asked[0].inputs.demand}"])
        print_sheets([sheet], form, title="compare")
    return FEASIBLE if all(one.of("plan") for one in found) else INFEASIBLE
