from __future__ import annotations

from typing import Any

from coordinator.core.events.events import PeerFacts
from coordinator.core.leases.drop_counts import ChunkTraffic, RolloutAccounts, TrafficTotals
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import heartbeat


def facts(from_origin: int, from_peers: int) -> PeerFacts:
    return heartbeat("a", chunk_bytes_from_origin=from_origin, chunk_bytes_from_peers=from_peers).facts


def test_open_is_what_is_neither_trained_nor_dropped() -> None:
    accounts = RolloutAccounts(issued=10, trained=4)
    accounts.dropped.update({"stale": 2, "peer_left": 1})
    assert accounts.open == 3


def test_traffic_adds_what_came_since_the_last_report() -> None:
    traffic = ChunkTraffic()
    assert traffic.peer_share is None
    traffic.observe(PeerId("a"), facts(100, 0))
    traffic.observe(PeerId("a"), facts(150, 50))
    traffic.observe(PeerId("b"), facts(0, 250))
    assert (traffic.totals.from_origin, traffic.totals.from_peers) == (150, 300)
    assert traffic.peer_share == 300 / 450


def test_a_restarted_process_counts_from_zero_and_a_returning_one_continues() -> None:
    traffic = ChunkTraffic()
    traffic.observe(PeerId("a"), facts(100, 100))
    traffic.observe(PeerId("a"), facts(100, 120))  # the same process, perhaps in a new session
    traffic.observe(PeerId("a"), facts(10, 0))  # a new process
    assert (traffic.totals.from_origin, traffic.totals.from_peers) == (110, 120)


def test_traffic_remembers_a_bounded_number_of_identities() -> None:
    traffic, once = ChunkTraffic(), facts(1, 0)
    for number in range(20_000):
        traffic.observe(PeerId(f"peer-{number}"), once)
    assert traffic.totals.from_origin == 20_000
    assert len(traffic._last) <= 16384


def test_ten_thousand_peers_are_distinguished_from_restarted_ones() -> None:
    traffic, once = ChunkTraffic(), facts(1, 0)
    for _ in range(2):
        for number in range(10_000):
            traffic.observe(PeerId(f"peer-{number}"), once)
    assert traffic.totals.from_origin == 10_000


def test_every_member_is_remembered_however_many_there_are() -> None:
    traffic, once = ChunkTraffic(), facts(1, 0)
    traffic.joined(20_000)
    for _ in range(2):
        for number in range(20_000):
            traffic.observe(PeerId(f"peer-{number}"), once)
    assert traffic.totals.from_origin == 20_000


def test_every_counter_is_summed_under_its_name() -> None:
    traffic = ChunkTraffic()
    names = ("chunk_bytes_from_origin", "chunk_bytes_from_peers", "chunks_rejected", "chunks_duplicate")
    names += ("chunks_hedged", "reparentings", "delta_bytes_saved", "addresses_refused")
    counted: dict[str, Any] = {name: number for number, name in enumerate(names, 1)}
    for name in ("a", "b"):
        traffic.observe(PeerId(name), heartbeat(name, **counted).facts)
    assert traffic.totals == TrafficTotals(
        from_origin=2,
        from_peers=4,
        rejected=6,
        duplicate=8,
        hedged=10,
        reparentings=12,
        delta_bytes_saved=14,
        addresses_refused=16,
    )
