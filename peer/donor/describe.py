"""Describe a peer process for its owner's screens, from the messages that it sends to the coordinator. Pure."""

from __future__ import annotations

from typing import Any

from peer.session.coordinators import Coordinators
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.reach_words import path_of


def describe(
    hello: pb.Hello,
    heartbeat: pb.Heartbeat,
    *,
    run_id: str,
    peer_id: str,
    search: Coordinators,
    reach: dict[str, Any],
    connected: bool,
    now: float,
    uptime_s: float,
    verdict: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the process's part of the report (peer.donor.report).

    Args:
        search: the coordinator's addresses and their problems.
        reach: how this machine is reached (peer.reachability.summary).
        verdict: what the run found wrong with its rollouts (peer.donor.verdict); None: nothing.
        now: seconds, on the clock of ``search``.
    """
    active = heartbeat.active_version if heartbeat.has_active_version else None
    receiving = None
    if heartbeat.receiving_chunks_total:
        receiving = {
            "version": heartbeat.receiving_version,
            "chunks_have": heartbeat.receiving_chunks_have,
            "chunks_total": heartbeat.receiving_chunks_total,
            "map": list(heartbeat.receiving_map),
        }
    return {
        "name": hello.name,
        "peer_id": peer_id,
        "run_id": run_id,
        "software": hello.software,
        "hardware": hello.hardware,
        "uptime_s": uptime_s,
        "coordinator": search.current,
        "connected": connected,
        "coordinators_failing": search.rows(now),
        "reach": {**reach, "p2p": heartbeat.p2p},
        "verdict": verdict,
        "state": heartbeat.state,
        "reason": heartbeat.reason,
        "version_active": active,
        # The engine may load a version before it is durable; only durable versions are among the held ones.
        "version_newest": max([*hello.held_versions, *([] if active is None else [active])], default=None),
        "receiving": receiving,
        "tokens_per_second": heartbeat.tokens_per_second,
        "tokens_generated": heartbeat.tokens_generated,
        "swap": _swap(heartbeat.swap) if heartbeat.HasField("swap") else None,
        "engine_devices": heartbeat.engine_devices,
        "engine_versions": heartbeat.engine_versions,
        "links": [_link(link) for link in heartbeat.links],
        "chunk_bytes_from_origin": heartbeat.chunk_bytes_from_origin,
        "chunk_bytes_from_peers": heartbeat.chunk_bytes_from_peers,
        "chunk_bytes_sent": heartbeat.chunk_bytes_sent,
        "upload_bytes_per_second": heartbeat.uplink_bytes_per_second,
        "download_bytes_per_second": heartbeat.downlink_bytes_per_second,
    }


def _swap(swap: pb.SwapReport) -> dict[str, Any]:
    return {
        "version": swap.version,
        "kind": swap.kind,
        "paused_s": swap.paused_s,
        "moved_bytes": swap.moved_bytes,
        "read_back": swap.read_back,
    }


def _link(link: pb.LinkReport) -> dict[str, Any]:
    return {
        "peer_id": link.peer_id,
        "transport": link.transport,
        "path": path_of(link.transport, lan=link.lan),
        "rtt_s": link.rtt_s,
        "bytes_sent": link.bytes_sent,
        "bytes_received": link.bytes_received,
        "congestion_control": link.congestion_control,
        "lost_share": link.lost_share,
        "window_limited_share": link.window_limited_share,
    }
