"""The capacity model's decisions as metric families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

# (name, help, key of the status' activation; of its plan)
GAUGES = (
    ("rollcast_peers_on", "Peers that are given work.", "on"),
    ("rollcast_peers_standby", "Peers that are switched off.", "standby"),
    ("rollcast_peers_usd_per_hour", "Price of the peers that are on.", "usd_per_hour"),
    ("rollcast_activation_switches", "Peers switched on or off since the coordinator's start.", "switches"),
)
BUDGET_GAUGES = (
    ("rollcast_budget_usd_per_hour", "What may be spent in an hour.", "usd_per_hour_max"),
    ("rollcast_budget_usd", "What workers at providers may cost in all.", "usd_total_max"),
)
PLAN_GAUGES = (
    ("rollcast_plan_usd_per_hour", "What the last plan costs, traffic included.", "usd_per_hour"),
    ("rollcast_plan_lp_bound_usd_per_hour", "No set costs less.", "lp_bound_usd_per_hour"),
    ("rollcast_plan_rollouts_per_second", "What the last plan's set makes.", "rate_rollouts_per_second"),
    ("rollcast_plan_rollouts_per_second_needed", "What the learner needs.", "rate_needed_rollouts_per_second"),
)


def families(activation: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Of the status' activation; where nobody decides, only what may be spent."""
    if activation is None:
        return
    for name, text, key in BUDGET_GAUGES:
        if activation.get(key) is not None:
            yield GaugeMetricFamily(name, text, value=float(activation[key]))
    if activation["mode"] == "off":
        return
    for name, text, key in GAUGES:
        yield GaugeMetricFamily(name, text, value=float(activation[key]))
    for name, text, key in PLAN_GAUGES if activation["plan"] is not None else ():
        yield GaugeMetricFamily(name, text, value=float(activation["plan"][key]))
    corrections = GaugeMetricFamily("rollcast_correction_ratio", "Measured / predicted.", labels=["of"])
    for of in ("rate", "t_bcast", "t_train"):
        corrections.add_metric([of], float(activation[f"{of}_correction"]))
    yield corrections
