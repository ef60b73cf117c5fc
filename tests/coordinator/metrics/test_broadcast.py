"""Test Prometheus' view of the broadcast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import CollectorRegistry
from prometheus_client.registry import Collector

from coordinator.metrics import broadcast as broadcast_metrics
from rollcast.runtime.metrics import render
from tests.coordinator.sample_status import broadcast_hop, broadcast_peer, sample_broadcast


def samples(broadcast: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return every sample by name and the values of its labels; registering and rendering check the names."""

    class Scraped(Collector):
        def collect(self) -> Any:
            return broadcast_metrics.families(broadcast)

    registry = CollectorRegistry()
    registry.register(Scraped())
    assert b"rollcast_broadcast_running" in render(registry)
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_metrics_match_the_broadcast_status() -> None:
    found = samples(sample_broadcast(peers=[broadcast_peer("peer-5", 0.41, peer_id="p5", uplink_bytes_per_s=None)]))
    expected = {
        ("rollcast_broadcast_running", ""): 1,
        ("rollcast_broadcast_peers_missing", ""): 1,
        ("rollcast_chunk_bytes_received_total", "origin"): 620_000_000,
        ("rollcast_delta_bytes_saved_total", ""): 181_000_000_000,
        ("rollcast_chunks_hedged_total", ""): 31,
        ("rollcast_addresses_refused_total", ""): 2,
        ("rollcast_reparentings_total", ""): 9,
        ("rollcast_relay_plans_total", ""): 14,
        ("rollcast_relay_stripes", "mesh"): 9,
        ("rollcast_links", "hole-punched"): 6,
        ("rollcast_peer_t_bcast_seconds_bucket", "2.5"): 600,
        ("rollcast_peer_t_bcast_seconds_bucket", "+Inf"): 661,
        ("rollcast_peer_t_bcast_seconds_count", ""): 661,
        ("rollcast_hop_bytes_per_second", "0"): 0.78e6,
        ("rollcast_link_bytes_per_second", "origin,peer-5"): 0.84e6,
        ("rollcast_link_rtt_seconds", "peer-5,peer-2"): 0.183,
        ("rollcast_peer_version_held_ratio", "p5,peer-5"): 0.41,
        ("rollcast_peer_times_last_total", "p5,peer-5"): 3,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert ("rollcast_peer_uplink_bytes_per_second", "p5,peer-5") not in found
    assert ("rollcast_link_bytes_per_second", "peer-1,peer-5") not in found  # not measured


def test_every_metric_is_documented() -> None:
    documented = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    names = {name.removesuffix("_bucket").removesuffix("_count") for name, _ in samples(sample_broadcast())}
    names.discard("rollcast_peer_t_bcast_seconds_sum")
    assert not [name for name in sorted(names) if name not in documented]


@pytest.mark.parametrize(
    ("changes", "gone"), [({"peers_left_out": 300}, "rollcast_peer_times"), ({"hops_left_out": 300}, "rollcast_link_")]
)
def test_large_fleets_have_no_series_for_every_one(changes: dict[str, int], gone: str) -> None:
    names = {name for name, _ in samples(sample_broadcast(**changes))}
    assert not any(name.startswith(gone) for name in names)
    assert "rollcast_peer_t_bcast_seconds_bucket" in names


def test_two_links_between_the_same_peers_are_one_series() -> None:
    hops = [broadcast_hop("a", "b", bytes_per_s=1.0), broadcast_hop("a", "b", bytes_per_s=2.0)]
    assert samples(sample_broadcast(hops=hops))[("rollcast_link_bytes_per_second", "a,b")] == 2.0
