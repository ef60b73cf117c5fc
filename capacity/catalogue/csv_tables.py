"""Read the CSV files that ship with the package."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import resources

DATA = "data"


def read_text(folder: str, file: str) -> str:
    """Return a shipped file as text."""
    return (resources.files(__package__) / DATA / folder / file).read_text(encoding="utf-8")


def read_rows(folder: str, file: str, columns: Sequence[str] | None = None) -> list[dict[str, str]]:
    """Return the rows of a shipped CSV file, each as column name -> cell.

    Args:
        columns: names of the columns for a file without a header; None: the first line has them.
    """
    return list(csv.DictReader(read_text(folder, file).splitlines(), fieldnames=columns))


def number_or_none(cell: str) -> float | None:
    """Return the number in a cell, or None where the cell is empty because the figure is not known."""
    return float(cell) if cell else None
