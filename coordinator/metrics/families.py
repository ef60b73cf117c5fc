"""Export activation, reachability and staleness as Prometheus metric families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

# (name, help, key of the status' activation; of its plan)
_ACTIVATION_GAUGES = (
    ("rollcast_peers_on", "Peers that are switched on and receive work.", "on"),
    ("rollcast_peers_standby", "Peers that are switched off.", "standby"),
    ("rollcast_peers_usd_per_hour", "Price per hour of the peers that are on.", "usd_per_hour"),
    ("rollcast_activation_switches", "Peers switched on or off since the coordinator started.", "switches"),
)
_BUDGET_GAUGES = (
    ("rollcast_budget_usd_per_hour", "Limit on spending per hour, in USD.", "usd_per_hour_max"),
    ("rollcast_budget_usd", "Limit on the total cost of workers at providers, in USD.", "usd_total_max"),
)
_PLAN_GAUGES = (
    ("rollcast_plan_usd_per_hour", "Cost per hour of the last plan, traffic included.", "usd_per_hour"),
    (
        "rollcast_plan_lp_bound_usd_per_hour",
        "Lower bound on the cost per hour of any set of peers that meets the demand.",
        "lp_bound_usd_per_hour",
    ),
    (
        "rollcast_plan_rollouts_per_second",
        "Rollouts per second that the last plan expects of its set of peers.",
        "rate_rollouts_per_second",
    ),
    (
        "rollcast_plan_rollouts_per_second_needed",
        "Rollouts per second that the learner needs.",
        "rate_needed_rollouts_per_second",
    ),
)
_PUNCH_RESULTS = ("opened", "failed", "refused")
# (name, help, key of the status's ``staleness``)
_STALENESS_GAUGES = (
    ("rollcast_staleness_gate_steps", "Age in learner steps up to which rollouts are trained.", "age_max"),
    ("rollcast_publish_every_steps", "Current kappa: learner steps between two versions.", "publish_every_steps"),
    ("rollcast_step_period_seconds", "Median seconds from one batch to the next.", "step_period_s"),
)
# (name, help, key of ``staleness.late``)
_LATE_COUNTERS = (
    ("rollcast_late_rollouts_corrected", "Rollouts trained although they were older than S.", "corrected"),
    ("rollcast_late_waits", "Batches held back for a late group.", "waits"),
    ("rollcast_late_waits_in_vain", "Batches held back for a late group and then formed without it.", "waits_in_vain"),
    ("rollcast_late_waited_seconds", "Seconds for which batches were held back.", "waited_s"),
)


def activation_families(activation: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Return the families of the status's ``activation``; with mode off only the budgets."""
    if activation is None:
        return
    for name, text, key in _BUDGET_GAUGES:
        if activation.get(key) is not None:
            yield GaugeMetricFamily(name, text, value=float(activation[key]))
    if activation["mode"] == "off":
        return
    for name, text, key in _ACTIVATION_GAUGES:
        yield GaugeMetricFamily(name, text, value=float(activation[key]))
    for name, text, key in _PLAN_GAUGES if activation["plan"] is not None else ():
        yield GaugeMetricFamily(name, text, value=float(activation["plan"][key]))
    corrections = GaugeMetricFamily(
        "rollcast_correction_ratio", "Measured value divided by the capacity model's prediction.", labels=["of"]
    )
    for of in ("rate", "t_bcast", "t_train"):
        corrections.add_metric([of], float(activation[f"{of}_correction"]))
    yield corrections


def reach_families(reach: Mapping[str, Any]) -> Iterable[Metric]:
    """Return the families of the broadcast status's ``reach``."""
    members = GaugeMetricFamily(
        "rollcast_members_reached", "Members by the way in which others reach them.", labels=["how"]
    )
    for word, count in reach["members"].items():
        members.add_metric([word], count)
    yield members
    links = GaugeMetricFamily(
        "rollcast_links", "Ends of open chunk links, by the path that carries them.", labels=["path"]
    )
    for path, count in reach["link_ends"].items():
        links.add_metric([path], count)
    yield links
    checks = CounterMetricFamily(
        "rollcast_dial_backs", "Tests whether a member's address can be dialed, by result.", labels=["result"]
    )
    for result, count in reach["dial_backs"].items():
        checks.add_metric([result], count)
    yield checks
    yield GaugeMetricFamily(
        "rollcast_peer_records", "Members whose signed address record is sent to others.", reach["records"]
    )
    punches = reach["punches"]
    ended = CounterMetricFamily("rollcast_punches", "Requested hole punches, by result.", labels=["result"])
    for result in _PUNCH_RESULTS:
        ended.add_metric([result], punches[result])
    yield ended
    if punches["seconds_mean"] is not None:
        yield GaugeMetricFamily(
            "rollcast_punch_seconds_mean",
            "Mean seconds from the order to punch a hole to the open link.",
            punches["seconds_mean"],
        )
    yield GaugeMetricFamily(
        "rollcast_pairs_left_alone",
        "Pairs of members whose hole punches failed recently and pause.",
        punches["pairs_left_alone"],
    )


def staleness_families(staleness: Mapping[str, Any]) -> Iterable[Metric]:
    """Return the families of the status's ``staleness``; unknown values are left out."""
    for name, text, key in _STALENESS_GAUGES:
        if staleness.get(key) is not None:
            yield GaugeMetricFamily(name, text, value=float(staleness[key]))
    late = staleness.get("late") or {}
    for name, text, key in _LATE_COUNTERS:
        yield CounterMetricFamily(name, text, value=float(late.get(key, 0)))
    split = staleness.get("split")
    if split:
        yield _age_parts(split)
        trained = CounterMetricFamily(
            "rollcast_age_split_rollouts",
            "Rollouts trained, by whether the components of their age are known.",
            labels=["known"],
        )
        trained.add_metric(["yes"], split["total"]["rollouts"])
        trained.add_metric(["no"], split["total"]["unknown"])
        yield trained


def _age_parts(split: Mapping[str, Any]) -> Metric:
    family = HistogramMetricFamily(
        "rollcast_age_part_seconds", "Components of the age of trained rollouts, in seconds.", labels=["part"]
    )
    bounds = [*map(str, split["bounds_s"]), "+Inf"]
    for part, one in split["parts"].items():
        buckets = list(zip(bounds, map(float, one["at_most"]), strict=True))
        family.add_metric([part], buckets, one["sum_s"])
    return family
