"""Read a pool of workers from CSV with a header, or TOML with a [[worker]] table each. Columns: columns.py."""

from __future__ import annotations

import csv
import difflib
import io
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity.inputs.pool.columns import ALIASES, RULES, Record
from rollcast.runtime.errors import PoolError

FILE_BYTES_MAX = 64 << 20
ROWS_MAX = 100_000
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_COLUMNS_PAGE = "docs/capacity.md lists the columns with their units"


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its place in the file: ``line 7`` of a CSV file, or ``worker 3`` of a TOML file."""

    where: str
    values: Record


def read_pool(path: Path) -> list[Row]:
    """Read the rows of a .csv or .toml file, without checking their values; checks.py does that.

    Raises:
        PoolError: the file is missing, too large, empty, of another kind, or has columns that no pool has.
    """
    text = _text(path)
    if path.suffix == ".csv":
        rows = rows_of_csv(text, str(path))
    elif path.suffix == ".toml":
        rows = rows_of_toml(text, str(path))
    else:
        raise PoolError(f"the format of {path} is not known", fix="name it .csv or .toml")
    if not rows:
        raise PoolError(f"{path} has no workers", fix="give it a row for each; `rollcast init plan` writes an example")
    if len(rows) > ROWS_MAX:
        raise PoolError(f"{path} has {len(rows)} rows, more than {ROWS_MAX}", fix="use the column `count` for equals")
    return rows


def rows_of_csv(text: str, source: str) -> list[Row]:
    """Parse rows of CSV text; lines that start with # are comments, empty cells are absent.

    Cells are separated by commas, semicolons or tabs, whichever the header has most of. With semicolons a comma is a
    decimal point, as in spreadsheets of countries that write it so.

    Raises:
        PoolError: the text is not CSV, a column is unknown or named twice, a row has another number of cells than the
            header, or a cell has a line break in it.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    delimiter = max(_DELIMITERS, key=lines[0][1].count) if lines else ","
    reader = csv.reader(io.StringIO("\n".join(line for _, line in lines)), strict=True, delimiter=delimiter)
    try:
        table = list(reader)
    except csv.Error as error:
        raise PoolError(f"{source} is not CSV", cause=str(error), fix="check its quotes") from None
    if not table:
        return []
    header = _our_names([cell.strip() for cell in table[0]], source)
    if len(table) != len(lines):
        raise PoolError(f"{source} has a cell with a line break in it", fix="keep each row on one line")
    rows = []
    for (number, _), cells in zip(lines[1:], table[1:], strict=True):
        if len(cells) != len(header):
            raise PoolError(
                f"{source} line {number} has {len(cells)} cells, the header {len(header)}",
                fix=f"put text with {_DELIMITERS[delimiter]} into double quotes",
            )
        filled = {name: _plain_cell(cell, delimiter) for name, cell in zip(header, cells, strict=True) if cell.strip()}
        rows.append(Row(f"line {number}", dict(filled)))
    return rows


def rows_of_toml(text: str, source: str) -> list[Row]:
    """Parse rows of TOML text: ``[[worker]]`` tables, on top of a ``[defaults]`` table if there is one.

    Raises:
        PoolError: the text is not TOML, has other tables, an unknown column, or a value that is no text or number.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PoolError(f"{source} is not TOML", cause=str(error), fix="correct the line named above") from None
    defaults, workers = document.pop("defaults", {}), document.pop("worker", [])
    if document or not isinstance(defaults, dict) or not isinstance(workers, list):
        extra = ", ".join(sorted(document)) or "a table of another kind"
        raise PoolError(f"{source} has {extra}", fix="a pool has [[worker]] tables and one [defaults] table")
    rows = []
    for number, worker in enumerate(workers, 1):
        values = {**defaults, **worker} if isinstance(worker, dict) else {"": worker}
        names = _our_names(values, f"{source} worker {number}")
        values = dict(zip(names, values.values(), strict=True))
        rows.append(Row(f"worker {number}", _plain(values, f"{source} worker {number}")))
    return rows


def assumed_values(assignments: Iterable[str]) -> Record:
    """Parse ``column=value`` assignments, which fill the empty cells of rows.

    Raises:
        PoolError: an assignment has no ``=`` or no value, or its column is unknown or named twice.
    """
    values: Record = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not value.strip():
            raise PoolError(f"cannot read the assumption {assignment!r}", fix="write it as column=value")
        values[name.strip()] = value.strip()
    return dict(zip(_our_names(values, "--assume"), values.values(), strict=True))


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PoolError(
                f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB", fix="use the column `count` for equals"
            )
        return path.read_text(encoding="utf-8-sig")  # spreadsheets begin a file with a byte order mark
    except FileNotFoundError:
        fix = "give a .csv or .toml file; `rollcast init plan` writes one to begin with"
        raise PoolError(f"no pool at {path}", fix=fix) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"cannot read {path}", cause=str(error), fix="check the file and its permissions") from None


def _our_names(names: Iterable[str], source: str) -> list[str]:
    """Return the columns' names in a pool.

    Raises:
        PoolError: a column is unknown, or named twice.
    """
    ours: dict[str, str] = {}
    for given in names:
        name = ALIASES.get(given.lower(), given)
        if name in ours:
            twice = repr(name) if given == ours[name] else f"{name!r} as {ours[name]!r} and as {given!r}"
            raise PoolError(f"{source} has the column {twice} twice", fix="remove one of them")
        ours[name] = given
        if name not in RULES:
            close = difflib.get_close_matches(name, RULES, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise PoolError(f"{source} has a column that no pool has: {name!r}", fix=f"{hint}{_COLUMNS_PAGE}")
    return list(ours)


def _plain_cell(cell: str, delimiter: str) -> str:
    text = cell.strip()
    return text.replace(",", ".") if delimiter == ";" and _DECIMAL_COMMA.fullmatch(text) else text


def _plain(values: Mapping[str, Any], where: str) -> Record:
    for name, value in values.items():
        if not isinstance(value, str | float | int | bool):
            raise PoolError(f"{where}: {name} is neither text nor a number", fix="write it as one value")
    return {name: value for name, value in values.items() if value != ""}
