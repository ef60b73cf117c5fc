"""Look up the shipped length distributions. Origin: data/servegen-deepseek-r1 and data/azure-llm."""

from __future__ import annotations

import functools
from typing import Literal

from capacity.catalogue.csv_tables import read_rows
from capacity.model.lengths import LengthDistribution

Field = Literal["output_tokens", "input_tokens"]

#: Name -> folder, file, and the service to select where the table has several, else empty.
_TABLES = {
    "deepseek-r1": ("servegen-deepseek-r1", "pmf_logbins.csv", ""),
    "azure-chat": ("azure-llm", "token_counts.csv", "conv"),
    "azure-code": ("azure-llm", "token_counts.csv", "code"),
}
LENGTH_NAMES = tuple(_TABLES)


def lengths_named(name: str, field: Field = "output_tokens") -> LengthDistribution | None:
    """Return a shipped distribution of output or prompt lengths, in tokens; None if there is none of that name."""
    return _read(name, field) if name in _TABLES else None


@functools.cache
def _read(name: str, field: Field) -> LengthDistribution:
    folder, file, service = _TABLES[name]
    rows = [row for row in read_rows(folder, file) if row["field"] == field and row.get("service", "") == service]
    if service:
        counts = {int(row["tokens"]): int(row["requests"]) for row in rows}
        return LengthDistribution.from_bins((tokens, tokens + 1, count) for tokens, count in counts.items())
    return LengthDistribution.from_bins(
        (float(row["lo_incl"]), float(row["hi_excl"]), float(row["prob"])) for row in rows
    )
