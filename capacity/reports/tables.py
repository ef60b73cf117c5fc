"""Hold a table of figures, and write it as text, CSV, JSON or HTML."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cell = str | float | int | bool | None
Format = Literal["table", "json", "csv", "html"]

TICK = "✓"

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .15rem .7rem .15rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8883; }
th { font-weight: 500; opacity: .75; }
.number { text-align: right; }
.chosen { background: #0a84ff1a; }
""".strip()


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        key: name in CSV and JSON, with the unit.
        heading: name for people, with the unit.
        digits: digits after the decimal point; None: text, a whole number, or yes and no.
        prose: whether the cells are long text, which may be broken into lines.
    """

    key: str
    heading: str
    digits: int | None = None
    prose: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table.

    Args:
        rows: shape [rows][columns].
        marked: index of the column whose truth marks a row as chosen; None: there is none.
        lines: lines of text under the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: int | None = None
    lines: tuple[str, ...] = ()

    def is_number(self, place: int) -> bool:
        """Whether a column holds numbers: it has values, and all of them are numbers."""
        values = [row[place] for row in self.rows if row[place] is not None]
        return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def shown(value: Cell, digits: int | None = None) -> str:
    """Format a cell for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return TICK if value else ""
    if isinstance(value, float):
        text = f"{value:,.{2 if digits is None else digits}f}"
        return text.removeprefix("-") if not text.strip("-0.,") else text
    return f"{value:,}" if isinstance(value, int) else value


def csv_of(sheet: Sheet) -> str:
    """Return CSV with keys as the header and unrounded numbers; yes and no are 1 and 0."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.key for column in sheet.columns)
    for row in sheet.rows:
        writer.writerow("" if cell is None else int(cell) if isinstance(cell, bool) else cell for cell in row)
    return out.getvalue()


def records_of(sheet: Sheet) -> list[dict[str, Any]]:
    """Return the rows as objects, for JSON."""
    keys = [column.key for column in sheet.columns]
    return [dict(zip(keys, row, strict=True)) for row in sheet.rows]


def html_of(title: str, sheets: Sequence[Sheet]) -> str:
    """Return a self-contained HTML page."""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
    ]
    parts += [_html_table(sheet) for sheet in sheets]
    return "\n".join([*parts, "</body></html>\n"])


def _html_table(sheet: Sheet) -> str:
    numbers = [sheet.is_number(place) for place in range(len(sheet.columns))]
    lines = [f"<table><caption>{html.escape(sheet.title)}</caption><thead><tr>"]
    lines += [_html_cell("th", column.heading, number) for column, number in zip(sheet.columns, numbers, strict=True)]
    lines.append("</tr></thead><tbody>")
    for row in sheet.rows:
        chosen = sheet.marked is not None and bool(row[sheet.marked])
        cells = [
            _html_cell("td", shown(cell, column.digits), number)
            for cell, column, number in zip(row, sheet.columns, numbers, strict=True)
        ]
        lines.append(f"<tr{' class=chosen' if chosen else ''}>{''.join(cells)}</tr>")
    lines.append("</tbody></table>")
    lines += [f"<p>{html.escape(line)}</p>" for line in sheet.lines]
    return "\n".join(lines)


def _html_cell(tag: str, text: str, number: bool) -> str:
    return f"<{tag}{' class=number' if number else ''}>{html.escape(text)}</{tag}>"
