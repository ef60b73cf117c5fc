"""Prometheus metrics of staleness: the limits in force, late rollouts, and what ages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

# (name, help, key of the status's ``staleness``)
_GAUGES = (
    ("rollcast_staleness_gate_steps", "Age up to which rollouts are trained.", "age_max"),
    ("rollcast_publish_every_steps", "kappa, learner steps between two versions, as it is now.", "publish_every_steps"),
    ("rollcast_step_period_seconds", "Median time from one batch to the next.", "step_period_s"),
)
# (name, help, key of ``staleness.late``)
_COUNTERS = (
    ("rollcast_late_rollouts_corrected", "Rollouts trained beyond S.", "corrected"),
    ("rollcast_late_waits", "Batches held back for a late group.", "waits"),
    ("rollcast_late_waits_in_vain", "Batches held back and formed without the late group.", "waits_in_vain"),
    ("rollcast_late_waited_seconds", "Time for which batches were held back.", "waited_s"),
)


def families(staleness: Mapping[str, Any]) -> Iterable[Metric]:
    """From the status's ``staleness``; what is unknown is left out."""
    for name, text, key in _GAUGES:
        if staleness.get(key) is not None:
            yield GaugeMetricFamily(name, text, value=float(staleness[key]))
    late = staleness.get("late") or {}
    for name, text, key in _COUNTERS:
        yield CounterMetricFamily(name, text, value=float(late.get(key, 0)))
    split = staleness.get("split")
    if split:
        yield _parts(split)
        trained = CounterMetricFamily(
            "rollcast_age_split_rollouts", "Rollouts trained, by known age.", labels=["known"]
        )
        trained.add_metric(["yes"], split["total"]["rollouts"])
        trained.add_metric(["no"], split["total"]["unknown"])
        yield trained


def _parts(split: Mapping[str, Any]) -> Metric:
    family = HistogramMetricFamily(
        "rollcast_age_part_seconds", "What the age of trained rollouts is made of.", labels=["part"]
    )
    bounds = [*map(str, split["bounds_s"]), "+Inf"]
    for part, one in split["parts"].items():
        buckets = list(zip(bounds, map(float, one["at_most"]), strict=True))
        family.add_metric([part], buckets, one["sum_s"])
    return family
