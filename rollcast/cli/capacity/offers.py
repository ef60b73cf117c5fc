"""`rollcast capacity offers`: list the workers of a pool, the skipped rows, and the values that files may use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from capacity.reports.offers import skipped_sheet, worker_sheet
from capacity.reports.plan import input_lines
from capacity.reports.reference import (
    column_sheet,
    demand_sheet,
    hardware_sheet,
    length_sheet,
    model_sheet,
    price_sheet,
)
from capacity.reports.tables import Sheet, records_of
from rollcast.cli.capacity.inputs import DemandOptions, PoolOptions, scenario
from rollcast.cli.capacity.output import FormatOption, note, print_json, print_sheets

SCHEMA = "rollcast.capacity.offers/1"

List = Literal["workers", "skipped", "columns", "demand", "hardware", "models", "lengths", "prices"]

_REFERENCE: Mapping[str, Callable[[], Sheet]] = {
    "columns": column_sheet,
    "demand": demand_sheet,
    "hardware": hardware_sheet,
    "models": model_sheet,
    "lengths": length_sheet,
    "prices": price_sheet,
}


def offers(
    what: List = "workers",
    /,
    *,
    pool: PoolOptions | None = None,
    demand: DemandOptions | None = None,
    usd_per_hour_at_most: float | None = None,
    region: str = "",
    form: FormatOption = "table",
) -> int:
    """List and filter the workers of a pool with their speeds.

    Parameters
    ----------
    what
        What to list: workers; skipped rows with the reason; or what files may contain: columns of a pool, keys of a
        demand, hardware, models, lengths, and prices of the catalogue.
    usd_per_hour_at_most
        Leave out workers with a higher price.
    region
        Only list workers whose region begins with this text.
    form
        Output format: table, json, csv or html.
    """
    if what in _REFERENCE:
        sheet = _REFERENCE[what]()
    else:
        found = scenario(pool, demand)
        note(input_lines(found.inputs))
        most = math.inf if usd_per_hour_at_most is None else usd_per_hour_at_most
        kept = [one for one in found.workers if one.region.startswith(region) and one.usd_per_hour <= most]
        is_screen = form == "table"
        sheet = worker_sheet(kept, alike_share_a_row=is_screen) if what == "workers" else skipped_sheet(found.inputs)
    if form == "json":
        print_json({"schema": SCHEMA, "what": what, "rows": records_of(sheet)})
    else:
        print_sheets([sheet], form, title=sheet.title)
    return 0
