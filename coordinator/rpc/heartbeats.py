"""Convert a heartbeat to facts for the core, after limiting every number and text in it."""

from __future__ import annotations

from coordinator.core.events.events import LinkFacts, PeerFacts, SwapFacts
from coordinator.rpc.sanitise import counter, duration_s, rate, share, text
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.ids import EncodingId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb

_REASON_SHOWN_MAX = 200  # why libp2p does not run
CONCURRENT_ROLLOUTS_MAX = 65536  # that one peer, or all members of a cell, may generate at once
_SHORT_TEXT_MAX = 16  # of a transport's or a congestion control's name; the kernel's names have at most 15


def facts_of(beat: pb.Heartbeat) -> PeerFacts:
    """Return what the peer reports about itself.

    Impossible rates and durations count as not measured (0); texts are cut.

    Raises:
        MalformedMessage: a counter is out of range, or there are more links or cells than an honest peer sends.
    """
    if len(beat.links) > limits.LINK_REPORTS_MAX:
        raise MalformedMessage(f"a heartbeat names more than {limits.LINK_REPORTS_MAX} links")
    if len(beat.receiving_map) > limits.HEAT_MAP_CELLS_MAX:
        raise MalformedMessage(f"a heartbeat's heat map has more than {limits.HEAT_MAP_CELLS_MAX} cells")
    total = beat.receiving_chunks_total
    return PeerFacts(
        state=text(beat.state),
        reason=text(beat.reason),
        active_version=Version(counter(beat.active_version)) if beat.has_active_version else None,
        tokens_generated=counter(beat.tokens_generated),
        chunk_bytes_from_origin=counter(beat.chunk_bytes_from_origin),
        chunk_bytes_from_peers=counter(beat.chunk_bytes_from_peers),
        chunk_bytes_sent=counter(beat.chunk_bytes_sent),
        chunks_rejected=counter(beat.chunks_rejected),
        receiving_version=Version(counter(beat.receiving_version)) if total else None,
        receiving_chunks_have=min(beat.receiving_chunks_have, total),
        receiving_chunks_total=total,
        tokens_per_second=rate(beat.tokens_per_second),
        uplink_bytes_per_second=rate(beat.uplink_bytes_per_second),
        uplink_measured_s=duration_s(beat.uplink_measured_s),
        uplink_age_s=duration_s(beat.uplink_age_s),
        downlink_bytes_per_second=rate(beat.downlink_bytes_per_second),
        links=tuple(_link(report) for report in beat.links),
        chunks_duplicate=counter(beat.chunks_duplicate),
        chunks_hedged=counter(beat.chunks_hedged),
        reparentings=counter(beat.reparentings),
        delta_bytes_saved=counter(beat.delta_bytes_saved),
        receiving_encoding_id=EncodingId(beat.receiving_encoding_id) if total else None,
        receiving_map=bytes(beat.receiving_map) if total else b"",
        uplink_probe_id=counter(beat.uplink_probe_id),
        sending_stopped=beat.sending_stopped,
        receiving_stopped=beat.receiving_stopped,
        p2p=text(beat.p2p, _REASON_SHOWN_MAX),
        swap=_swap(beat.swap) if beat.HasField("swap") else None,
        addresses_refused=counter(beat.addresses_refused),
        engine_devices=beat.engine_devices,
        engine_versions=beat.engine_versions,
        loop_lag_s=duration_s(beat.loop_lag_s),
        cell_workers=beat.cell_workers if beat.HasField("cell_workers") else None,
        cell_slots=min(beat.cell_slots, CONCURRENT_ROLLOUTS_MAX),
    )


def _swap(report: pb.SwapReport) -> SwapFacts:
    return SwapFacts(
        version=Version(counter(report.version)),
        kind=text(report.kind, _SHORT_TEXT_MAX),
        paused_s=duration_s(report.paused_s),
        moved_bytes=counter(report.moved_bytes),
        read_back=report.read_back,
    )


def _link(report: pb.LinkReport) -> LinkFacts:
    if len(report.peer_id) > limits.PEER_ID_LENGTH_MAX:
        raise MalformedMessage("a link in a heartbeat names no peer")
    return LinkFacts(
        peer_id=PeerId(text(report.peer_id)),
        transport=text(report.transport, _SHORT_TEXT_MAX),
        rtt_s=duration_s(report.rtt_s),
        bytes_sent=counter(report.bytes_sent),
        bytes_received=counter(report.bytes_received),
        sent_bytes_per_second=rate(report.sent_bytes_per_second),
        congestion_control=text(report.congestion_control, _SHORT_TEXT_MAX),
        lan=report.lan,
        lost_share=share(report.lost_share),
        window_limited_share=share(report.window_limited_share),
    )
