"""Export the broadcast's status as Prometheus metrics, with labels per peer only in small fleets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from coordinator.metrics.families import reach_families

PEERS_LABELLED_MAX = 256
"""Most peers with series of their own: in larger fleets these would outnumber all other series."""
HOPS_LABELLED_MAX = 256
"""Most hops with series of their own (all pairs of sixteen peers); of more hops only the distribution is exported."""

# (name, help, key of the totals)
TOTALS = (
    (
        "rollcast_delta_bytes_saved",
        "Keyframe bytes that deltas saved the peers, less the bytes of the deltas.",
        "bytes_saved_by_deltas",
    ),
    ("rollcast_chunks_duplicate", "Chunks received by peers that already held them.", "chunks_duplicate"),
    ("rollcast_chunks_hedged", "Chunks requested from a second source because the first was late.", "chunks_hedged"),
    ("rollcast_chunks_rejected", "Chunks rejected because they did not match their signed hash.", "chunks_rejected"),
    (
        "rollcast_addresses_refused",
        "Addresses that peers refused to dial because they lead into the peer's own network.",
        "addresses_refused",
    ),
    ("rollcast_reparentings", "Sources replaced in the middle of a broadcast.", "reparentings"),
)

# (name, help, key of a peer); None is left out.
PER_PEER = (
    ("rollcast_peer_version_held_ratio", "Share of the newest version's chunks that the peer holds.", "share_held"),
    (
        "rollcast_peer_uplink_bytes_per_second",
        "Bytes per second that left the peer while chunks waited to be sent.",
        "uplink_bytes_per_s",
    ),
    (
        "rollcast_peer_downlink_bytes_per_second",
        "Bytes that the peer received in its fastest second.",
        "downlink_bytes_per_s",
    ),
    ("rollcast_peer_t_bcast_last_seconds", "Seconds from announcement to the peer's newest verified copy.", "t_last_s"),
    (
        "rollcast_peer_t_bcast_p95_seconds",
        "95th percentile of the seconds from announcement to verified copy, over the peer's newest versions.",
        "t_p95_s",
    ),
)


def families(broadcast: Mapping[str, Any]) -> Iterable[Metric]:
    """Return every metric family, from the answer of /api/v1/broadcast."""
    yield GaugeMetricFamily(
        "rollcast_broadcast_running", "1 while a peer lacks the newest version.", broadcast["running"]
    )
    holding = broadcast["peers_holding"]
    missing = holding["total"] - holding["have"]
    yield GaugeMetricFamily("rollcast_broadcast_peers_missing", "Peers that lack the newest version.", missing)
    totals = broadcast["totals"]
    received = CounterMetricFamily(
        "rollcast_chunk_bytes_received", "Chunk bytes that peers received, by source.", labels=["source"]
    )
    for source in ("origin", "peers"):
        received.add_metric([source], totals[f"bytes_from_{source}"])
    yield received
    for name, text, key in TOTALS:
        yield CounterMetricFamily(name, text, totals[key])
    yield CounterMetricFamily(
        "rollcast_relay_plans", "Relay plans made since the coordinator started.", broadcast["plan"]["made"]
    )
    stripes = GaugeMetricFamily("rollcast_relay_stripes", "Stripes of the relay plan in force.", labels=["mode"])
    stripes.add_metric([broadcast["plan"]["mode"]], broadcast["plan"]["stripes"])
    yield stripes
    yield from reach_families(broadcast["reach"])
    yield _peer_seconds(broadcast["t_peer_s"])
    yield from _hops(broadcast)
    workers = [row for row in broadcast["peers"] if row["role"] == "peer"]
    if len(workers) + broadcast["peers_left_out"] <= PEERS_LABELLED_MAX:
        yield from _per_peer(workers)


def _peer_seconds(spread: Mapping[str, Any]) -> Metric:
    """Return a histogram over all peers and versions: its tail is what T_bcast waits for."""
    bounds = [*(str(float(bound)) for bound in spread["bounds"]), "+Inf"]
    return HistogramMetricFamily(
        "rollcast_peer_t_bcast_seconds",
        "Seconds from announcement to a peer's verified copy, over all peers and versions.",
        buckets=list(zip(bounds, spread["at_most"], strict=True)),
        sum_value=spread["sum"],
    )


def _hops(broadcast: Mapping[str, Any]) -> Iterable[Metric]:
    rates = broadcast["hop_rates"]
    spread = GaugeMetricFamily(
        "rollcast_hop_bytes_per_second",
        "Quantiles over all hops of the bytes per second sent while chunks waited.",
        labels=["quantile"],
    )
    for quantile, key in (("0", "slowest"), ("0.5", "p50"), ("1", "fastest")):
        if rates[key] is not None:
            spread.add_metric([quantile], rates[key])
    yield spread
    yield GaugeMetricFamily("rollcast_hops_measured", "Hops whose rate has been measured.", rates["measured"])
    controls = GaugeMetricFamily(
        "rollcast_hops_congestion_control", "Measured hops, by TCP congestion control.", labels=["algorithm"]
    )
    for name, count in rates["congestion_control"].items():
        controls.add_metric([name], count)
    yield controls
    hops: Sequence[Mapping[str, Any]] = broadcast["hops"]
    if len(hops) + broadcast["hops_left_out"] > HOPS_LABELLED_MAX:
        return
    columns = (
        ("rollcast_link_bytes_per_second", "Bytes per second sent over one hop while chunks waited.", "bytes_per_s"),
        ("rollcast_link_rtt_seconds", "Smallest recent round-trip time of one hop.", "rtt_s"),
        ("rollcast_link_lost_share", "Share of the TCP segments of one hop that were lost lately.", "lost_share"),
    )
    for name, text, key in columns:
        family = GaugeMetricFamily(name, text, labels=["source", "target"])
        for (source, target), value in _fastest(hops, key).items():
            family.add_metric([source, target], value)
        yield family


def _fastest(hops: Iterable[Mapping[str, Any]], key: str) -> dict[tuple[str, str], float]:
    """Return one value per pair of peers; of several links between them the largest."""
    values: dict[tuple[str, str], float] = {}
    for hop in hops:
        if hop[key] is not None:
            pair = (hop["from_peer_id"], hop["to_peer_id"])
            values[pair] = max(hop[key], values.get(pair, 0.0))
    return values


def _per_peer(workers: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    for name, text, key in PER_PEER:
        family = GaugeMetricFamily(name, text, labels=["peer", "name"])
        for row in workers:
            if row[key] is not None:
                family.add_metric([row["peer_id"], row["name"]], row[key])
        yield family
    last = CounterMetricFamily(
        "rollcast_peer_times_last", "Versions that the peer was the last to hold.", labels=["peer", "name"]
    )
    for row in workers:
        last.add_metric([row["peer_id"], row["name"]], row["times_last"])
    yield last
