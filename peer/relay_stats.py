"""What the relay tells about itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peer.relay_state import RelayState
from peer.transport import Link
from rollcast.wire.ids import PeerId, Version


@dataclass(frozen=True, slots=True)
class LinkStats:
    """One open link."""

    peer_id: PeerId
    role: str
    direction: str  # "dialled" or "accepted"
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class RelayStats:
    """Counters since the start, and what is being received now."""

    chunk_bytes_from_origin: int
    chunk_bytes_from_peers: int
    chunk_bytes_sent: int
    chunks_rejected: int
    receiving_version: Version | None
    have: int
    total: int
    waiting_for: str  # empty when nothing is being received
    links: tuple[LinkStats, ...]
    store_failure: str  # why the store refused a version last; empty once it took one


def stats_of(state: RelayState, links: Iterable[Link], chunk_bytes_sent: int) -> RelayStats:
    """Read the core's state."""
    receiving = next(iter(state.in_flight()), None)
    return RelayStats(
        chunk_bytes_from_origin=state.counters.chunk_bytes_from_origin,
        chunk_bytes_from_peers=state.counters.chunk_bytes_from_peers,
        chunk_bytes_sent=chunk_bytes_sent,
        chunks_rejected=state.counters.chunks_rejected,
        receiving_version=receiving.key.version if receiving else None,
        have=receiving.have.count if receiving else 0,
        total=receiving.chunk_count if receiving else 0,
        waiting_for=_waiting_for(state),
        links=tuple(
            LinkStats(
                link.peer_id,
                link.role,
                "dialled" if link.dialled else "accepted",
                link.bytes_sent,
                link.bytes_received,
            )
            for link in links
        ),
        store_failure="" if state.store_failure is None else str(state.store_failure),
    )


def _waiting_for(state: RelayState) -> str:
    receiving = next(iter(state.in_flight()), None)
    if receiving is None:
        return ""
    wanted = f"version {receiving.key.version}"
    if receiving.sources:
        names = ", ".join(sorted({state.links[link].peer_id for link in receiving.sources}))
        return f"chunks of {wanted} from {names}"
    if receiving.awaited is not None:
        return f"a link to {receiving.awaited} for {wanted}"
    return f"somebody who can send {wanted}"
