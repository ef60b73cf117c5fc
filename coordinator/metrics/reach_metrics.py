"""How members reach each other as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_RESULTS = ("opened", "failed", "refused")


def families(reach: Mapping[str, Any]) -> Iterable[Metric]:
    """From the broadcast status's ``reach``."""
    members = GaugeMetricFamily("rollcast_members_reached", "Members by how others reach them.", labels=["how"])
    for word, count in reach["members"].items():
        members.add_metric([word], count)
    yield members
    links = GaugeMetricFamily("rollcast_links", "Ends of open chunk links by what carries them.", labels=["path"])
    for path, count in reach["link_ends"].items():
        links.add_metric([path], count)
    yield links
    checks = CounterMetricFamily(
        "rollcast_dial_backs", "Checks whether a member's address can be dialled, by what was found.", labels=["result"]
    )
    for result, count in reach["dial_backs"].items():
        checks.add_metric([result], count)
    yield checks
    yield GaugeMetricFamily(
        "rollcast_peer_records", "Members whose signed record is handed to others.", reach["records"]
    )
    punches = reach["punches"]
    ended = CounterMetricFamily("rollcast_punches", "Holes asked for, by how that ended.", labels=["result"])
    for result in _RESULTS:
        ended.add_metric([result], punches[result])
    yield ended
    if punches["seconds_mean"] is not None:
        yield GaugeMetricFamily(
            "rollcast_punch_seconds_mean", "From the order to punch to the link.", punches["seconds_mean"]
        )
    yield GaugeMetricFamily(
        "rollcast_pairs_left_alone", "Pairs between which no hole opened lately.", punches["pairs_left_alone"]
    )
