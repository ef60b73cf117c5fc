"""Which numbers of a step's line become curves."""

from __future__ import annotations

from coordinator.metrics.sinks.sink import numbers


def test_numbers_are_found_with_their_names_and_nothing_else_is() -> None:
    line = {
        "step": 3,
        "loss": 0.5,
        "age_split": {"queue_s": 1.5, "unknown": None},
        "name": "x",
        "list": [1],
        "no": None,
    }
    assert dict(numbers(line)) == {"step": 3.0, "loss": 0.5, "age_split/queue_s": 1.5}
