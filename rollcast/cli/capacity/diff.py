"""`rollcast capacity diff`: compare two plans.

`rollcast capacity schema`: print the JSON Schema of what `plan --format json` prints.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from capacity.questions.plan_json import json_schema, read_plan
from capacity.reports.plan_diff import diff_sheets, difference
from rollcast.cli.capacity.output import CHANGED, FEASIBLE, FormatOption, print_json, print_sheets

SCHEMA = "rollcast.capacity.diff/1"


def diff(before: Path, after: Path, /, *, form: FormatOption = "table") -> int:
    """Compare two plans: their inputs, their results, and which workers were switched on or off.

    The exit status is 0 if the same workers are on, and 3 if not.

    Parameters
    ----------
    before
        The earlier plan, which `rollcast capacity plan --out` saved.
    after
        The later plan, saved in the same way.
    form
        Output format: table, json, csv (switched workers only) or html.
    """
    found = difference(read_plan(before), read_plan(after))
    if form == "json":
        print_json({"schema": SCHEMA, "set_changed": found.set_changed} | asdict(found))
    else:
        print_sheets(diff_sheets(found), form, title=f"{before} and {after}")
    return CHANGED if found.set_changed else FEASIBLE


def schema() -> int:
    """Print the JSON Schema (draft 2020-12) of a plan."""
    sys.stdout.write(json_schema())
    return 0
