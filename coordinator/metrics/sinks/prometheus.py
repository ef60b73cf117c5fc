"""Export the newest step's metrics on /metrics, one series each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from coordinator.metrics.sinks.sink import numbers

FIGURES_MAX = 128  # most series: the learner chooses the names of its values, and may name peers in them


class PrometheusSink:
    """Sets rollcast_step_figure{figure} to the newest step's values of metrics.jsonl, without those of single peers."""

    name = "prometheus"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(
            "rollcast_step_figure",
            "A metric of the newest learner step, as in metrics.jsonl (docs/metrics.md).",
            ["figure"],
            registry=registry,
        )

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Replace the previous step."""
        self._gauge.clear()
        named = [(name, value) for name, value in numbers(values) if ":" not in name]
        for name, value in (("step", float(step)), *named[: FIGURES_MAX - 1]):
            self._gauge.labels(name).set(value)

    def close(self) -> None:
        """Do nothing: this sink holds no resources."""
