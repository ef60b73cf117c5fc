"""Where a learner step's figures go: one interface, and the numbers in a step's line that curves are drawn of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class Sink(Protocol):
    """Takes the figures of learner steps, in order, each step once."""

    name: str

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """The line of one step, as docs/metrics.md describes metrics.jsonl."""

    def close(self) -> None:
        """Nothing more comes; what was written is to be found afterwards."""


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line with their names: a histogram's age 3 is staleness_histogram/3, and so on."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
