"""Define a sink for learner steps' metrics, and flatten a step's line to the numbers that curves need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class Sink(Protocol):
    """Receives the metrics of learner steps, in order, each step once."""

    name: str

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the line of one step, as docs/metrics.md describes metrics.jsonl."""

    def close(self) -> None:
        """Finish: no step follows, and what was written must be readable afterwards."""


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line with their names; a histogram's age 3 is named staleness_histogram/3."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
