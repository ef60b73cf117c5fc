"""Summarise the relay for status pages and heartbeats, down to a heat map of the encoding that is being received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from peer.links.traffic import LinkTraffic
from peer.links.transport import Link
from peer.relay.core.state.relay_state import EncodingState, RelayState
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.limits import HEAT_MAP_CELLS_MAX, LINK_REPORTS_MAX
from rollcast.wire.proto import rollcast_pb2 as pb


def heat_map(bitmap: bytes, chunk_count: int, cells: int = HEAT_MAP_CELLS_MAX) -> bytes:
    """Return the share held of each of ``cells`` equal runs of chunks, one byte each; at most one cell a chunk.

    A cell is 255 only if all of its chunks are held, and 0 only if none is.

    Args:
        bitmap: most significant bit first, chunk 0 first, at least ``chunk_count`` bits; see
        rollcast/wire/versions/chunks.py.
    """
    cells = min(cells, chunk_count)
    if cells <= 0:
        return b""
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=chunk_count)
    starts = np.arange(cells + 1, dtype=np.int64) * chunk_count // cells
    held, sizes = np.add.reduceat(bits, starts[:-1], dtype=np.int64), np.diff(starts)
    shares = np.where(held == sizes, 255, np.where(held == 0, 0, np.clip(held * 255 // sizes, 1, 254)))
    return shares.astype(np.uint8).tobytes()


_VERSIONS_COUNTED = 16


@dataclass(frozen=True, slots=True)
class RelayStats:
    """The version that is being received, and the relay's counters since the process started.

    Args:
        receiving: the version that is being received; None if there is none.
        have: its verified chunks.
        total: all of its chunks.
        waiting_for: what the relay waits for, in words; empty if nothing is being received.
        store_failure: why the store failed last; empty once it has stored a version.
        report: the relay's fields of a heartbeat.
    """

    receiving: Version | None
    have: int
    total: int
    waiting_for: str
    store_failure: str
    report: pb.Heartbeat


class VersionBytes:
    """Counts the bytes of chunks received, for the newest versions only."""

    def __init__(self) -> None:
        self._bytes: Counter[int] = Counter()

    def add(self, version: int, size_bytes: int) -> None:
        """Count bytes of chunks of a version."""
        self._bytes[version] += size_bytes
        if len(self._bytes) > _VERSIONS_COUNTED:
            del self._bytes[min(self._bytes)]

    def of(self, version: int) -> int:
        """Return the bytes received of a version, in any of its encodings."""
        return self._bytes[version]


def stats_of(
    state: RelayState, links: Sequence[Link], traffic: LinkTraffic, chunk_bytes_sent: int, now: float
) -> RelayStats:
    """Summarise the state of the relay's core and the figures of its links."""
    receiving = _receiving(state)
    return RelayStats(
        receiving=receiving.key.version if receiving else None,
        have=receiving.have.count if receiving else 0,
        total=receiving.chunk_count if receiving else 0,
        waiting_for=_waiting_for(state, receiving),
        store_failure="" if state.store_failure is None else str(state.store_failure),
        report=_report(state, receiving, links, traffic, chunk_bytes_sent, now),
    )


def _receiving(state: RelayState) -> EncodingState | None:
    """Return the newest announced encoding that is not complete; None if there is none."""
    return next((encoding for encoding in state.in_flight() if encoding.announced), None)


def _report(
    state: RelayState,
    receiving: EncodingState | None,
    links: Sequence[Link],
    traffic: LinkTraffic,
    chunk_bytes_sent: int,
    now: float,
) -> pb.Heartbeat:
    counters, uplink = state.counters, traffic.uplink(now)
    return pb.Heartbeat(
        chunk_bytes_from_origin=counters.chunk_bytes_from_origin,
        chunk_bytes_from_peers=counters.chunk_bytes_from_peers,
        chunk_bytes_sent=chunk_bytes_sent,
        chunks_rejected=counters.chunks_rejected,
        chunks_duplicate=counters.chunks_duplicate,
        chunks_hedged=counters.chunks_hedged + counters.chunks_given_again,
        reparentings=counters.reparentings,
        uplink_bytes_per_second=uplink.bytes_per_second,
        uplink_measured_s=uplink.measured_s,
        uplink_age_s=uplink.age_s,
        downlink_bytes_per_second=traffic.downlink_bytes_per_second,
        links=_links(links),
        receiving_version=receiving.key.version if receiving else 0,
        receiving_encoding_id=receiving.key.encoding_id if receiving else EncodingId(0),
        receiving_chunks_have=receiving.have.count if receiving else 0,
        receiving_chunks_total=receiving.chunk_count if receiving else 0,
        receiving_map=heat_map(receiving.have.bitmap, receiving.chunk_count) if receiving else b"",
    )


def _links(links: Iterable[Link]) -> list[pb.LinkReport]:
    """Return reports on the links that carried most bytes: a heartbeat has room for a few."""
    busiest = sorted(links, key=lambda link: link.bytes_sent + link.bytes_received, reverse=True)
    reports = []
    for link in busiest[:LINK_REPORTS_MAX]:
        measured = link.measure()
        reports.append(
            pb.LinkReport(
                peer_id=link.peer_id,
                transport=link.transport,
                rtt_s=measured.rtt_s,
                bytes_sent=link.bytes_sent,
                bytes_received=link.bytes_received,
                sent_bytes_per_second=measured.sent_bytes_per_second,
                congestion_control=measured.congestion_control,
                lan=link.lan,
                lost_share=measured.lost_share,
                window_limited_share=measured.window_limited_share,
            )
        )
    return reports


def _waiting_for(state: RelayState, receiving: EncodingState | None) -> str:
    if receiving is None:
        return ""
    wanted = f"version {receiving.key.version}"
    if receiving.phase == "waiting":
        return f"the chunk list of {wanted}"
    if receiving.sources:
        names = ", ".join(sorted({state.links[link].peer_id for link in receiving.sources}))
        return f"late chunks of {wanted} from {names}"
    if receiving.awaited is not None:
        return f"a link to {receiving.awaited} for {wanted}"
    return f"chunks of {wanted}"
