"""Print the results of the planner's commands: tables, CSV, HTML or JSON on stdout, notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from capacity.reports.tables import TICK, Cell, Column, Format, Sheet, csv_of, html_of, shown

#: Exit statuses of the planner's commands, beside those of errors (docs/errors.md).
FEASIBLE, INFEASIBLE, CHANGED = 0, 2, 3

FormatOption = Annotated[Format, Parameter(name="--format")]

_WIDTH_ELSEWHERE = 150  # characters of a table that goes to a file or a pipe


def note(lines: Sequence[str]) -> None:
    """Print notes to stderr, so that stdout holds only the answer."""
    for line in lines:
        print(line, file=sys.stderr)


def working(what: str) -> Status:
    """Show on a terminal what is being computed, until the end of the block. Nothing may be printed within."""
    return Console(stderr=True).status(what)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(document, indent=1, allow_nan=False))


def print_sheets(sheets: Sequence[Sheet], form: Format, *, title: str, main: int = -1) -> None:
    """Print sheets as tables or as one HTML page; as CSV only one sheet is printed, the one at index ``main``."""
    if form == "csv":
        sys.stdout.write(csv_of(sheets[main]))
    elif form == "html":
        sys.stdout.write(html_of(title, sheets))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_WIDTH_ELSEWHERE)
        for sheet in sheets:
            console.print(Text(sheet.title, style="bold"), soft_wrap=True)
            console.print(to_table(sheet))
            for line in sheet.lines:
                console.print(Text(line, style="bold" if line.startswith(TICK) else ""), soft_wrap=True)
            console.print()


def to_table(sheet: Sheet) -> Table:
    """Return a sheet as a table for the terminal."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, column in enumerate(sheet.columns):
        table.add_column(
            column.heading,
            justify="right" if sheet.is_number(place) else "left",
            overflow="fold",
            no_wrap=not column.prose and sheet.is_number(place),
        )
    for row in sheet.rows:
        chosen = sheet.marked is not None and bool(row[sheet.marked])
        cells = [_text(cell, column) for cell, column in zip(row, sheet.columns, strict=True)]
        table.add_row(*cells, style="" if chosen or sheet.marked is None else "dim")
    return table


def _text(cell: Cell, column: Column) -> Text:
    text = "" if cell is None and column.prose else shown(cell, column.digits)
    return Text(text, style="green" if cell is True else "")
