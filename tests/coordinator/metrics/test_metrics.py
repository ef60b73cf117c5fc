"""Test Prometheus' view of the status and of the process."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.status.turns import Turns
from coordinator.metrics.metrics import BLOCKS_WINDOW_S, CoordinatorMetrics, LoopLag
from rollcast.runtime.errors import RateLimited
from tests.coordinator.sample_status import peer, sample_broadcast_turns, sample_status


def samples(metrics: CoordinatorMetrics) -> dict[tuple[str, str], float]:
    """Return every sample by name and the values of its labels."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_match_the_status() -> None:
    metrics = CoordinatorMetrics(sample_status, sample_broadcast_turns)
    metrics.upload_answer_s.observe(0.003)
    found = samples(metrics)
    expected = {
        ("rollcast_learner_step", ""): 87,
        ("rollcast_version_newest", ""): 87,
        ("rollcast_staleness_limit_steps", ""): 4,
        ("rollcast_staleness_trained_total", "1"): 14200,
        ("rollcast_rollouts_total", "issued"): 23040,
        ("rollcast_rollouts_dropped_total", "stale"): 41,
        ("rollcast_rollouts_open", ""): 606,
        ("rollcast_t_bcast_seconds", "0.95"): 0.391,
        ("rollcast_peers", "peer,receiving"): 1,
        ("rollcast_peers", "origin,serving"): 1,
        ("rollcast_chunk_bytes_received_total", "peers"): 3_100_000_000,
        ("rollcast_phase", "training"): 1,
        ("rollcast_upload_answer_seconds_count", ""): 1,
        ("rollcast_loop_lag_seconds_count", ""): 0,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_the_learners_use_of_its_devices_is_shown_where_it_is_known() -> None:
    known = sample_status(learner_mfu=0.41, learner_memory_peak_share=0.87)
    text = CoordinatorMetrics(lambda: known, sample_broadcast_turns).render().decode()
    assert "rollcast_learner_mfu_ratio 0.41" in text
    assert "rollcast_learner_memory_peak_ratio 0.87" in text
    assert (
        "rollcast_learner_mfu_ratio" not in CoordinatorMetrics(sample_status, sample_broadcast_turns).render().decode()
    )


def test_the_longest_block_of_the_loop_is_shown_for_one_to_two_scrapes() -> None:
    metrics = CoordinatorMetrics(sample_status, sample_broadcast_turns)

    def shown() -> float:
        return samples(metrics)[("rollcast_loop_block_max_seconds", "")]

    metrics.loop_blocks.observe(0.3, 100.0)
    metrics.loop_blocks.observe(0.01, 101.0)
    assert shown() == 0.3
    metrics.loop_blocks.observe(0.02, 100.0 + BLOCKS_WINDOW_S)
    assert shown() == 0.3, "a scrape just before the block is followed by one that shows it"
    metrics.loop_blocks.observe(0.01, 100.0 + 2 * BLOCKS_WINDOW_S)
    assert shown() == 0.02


async def test_scrapes_at_the_same_time_read_the_statuses_once_each() -> None:
    read = Counter[str]()

    def status() -> dict[str, Any]:
        read["status"] += 1
        return sample_status()

    def broadcast() -> Turns[dict[str, Any]]:
        read["broadcast"] += 1
        return sample_broadcast_turns()

    metrics = CoordinatorMetrics(status, broadcast)
    await asyncio.gather(metrics.render_in_turns(), metrics.render_in_turns())
    assert read == {"status": 2, "broadcast": 2}


def test_unknown_values_are_left_out() -> None:
    unknown = sample_status(newest_version=None, reward_train=None, t_bcast_s={}, peers=[])
    found = samples(CoordinatorMetrics(lambda: unknown, sample_broadcast_turns))
    assert ("rollcast_version_newest", "") not in found
    assert not any(name.startswith("rollcast_t_bcast") for name, _ in found)


def test_a_large_fleet_has_sums_only() -> None:
    many = sample_status(peers=[peer(f"peer-{number}", peer_id=f"id-{number}") for number in range(300)])
    found = samples(CoordinatorMetrics(lambda: many, sample_broadcast_turns))
    assert found[("rollcast_peers", "peer,generating")] == 300
    assert not any(name.startswith("rollcast_peer_version_lag") for name, _ in found)


def test_gateways_show_their_sessions_while_they_are_linked() -> None:
    metrics, sessions = CoordinatorMetrics(sample_status, sample_broadcast_turns), {"west": 3, "east": 0}
    metrics.watch_gateways(lambda: sessions)
    found = samples(metrics)
    assert found[("rollcast_gateway_sessions", "west")] == 3
    assert found[("rollcast_gateway_sessions", "east")] == 0
    del sessions["west"]
    assert ("rollcast_gateway_sessions", "west") not in samples(metrics)


def test_doors_show_what_they_refused() -> None:
    metrics, refused = CoordinatorMetrics(sample_status, sample_broadcast_turns), Counter[str]()
    metrics.watch_doors({"control": refused, "http": {"too_many_connections": 3}})
    refused[RateLimited("too fast").reason] += 2
    found = samples(metrics)
    assert found[("rollcast_refused_total", "control,rate_limited")] == 2
    assert found[("rollcast_refused_total", "http,too_many_connections")] == 3


def test_two_processes_in_one_do_not_share_a_registry() -> None:
    first, second = (
        CoordinatorMetrics(sample_status, sample_broadcast_turns),
        CoordinatorMetrics(sample_status, sample_broadcast_turns),
    )
    first.upload_answer_s.observe(1.0)
    assert samples(second)[("rollcast_upload_answer_seconds_count", "")] == 0


def test_uploads_wait_from_a_late_tick_until_the_loop_is_well_in_time() -> None:
    lag, seen = LoopLag(), []
    for late_s in (0.1, 0.9, 1.0, 0.5, 0.3, 0.2, 0.5):
        lag.observe(late_s)
        seen.append(lag.sheds)
    assert seen == [False, False, True, True, True, False, False]
