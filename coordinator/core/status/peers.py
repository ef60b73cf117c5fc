"""Describe the members as every screen shows them: one by one as far as they are listed, and counted by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any

from coordinator.core.activation.pool import price
from coordinator.core.decisions.state import CoreState
from coordinator.core.members.membership import Member
from coordinator.core.traversal.status import reachability
from rollcast.wire.ids import Version

PEERS_SHOWN_MAX = 512
"""Most members that are listed one by one; those furthest behind are among them."""
DEPARTED = ("left", "lost")
"""States of members that are listed although they have no session."""


@dataclass(frozen=True, slots=True)
class PeersInState:
    """Number of members of a role that are in a state, including members that are not listed."""

    role: str
    state: str
    count: int


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Status of one member. Byte counters are the member's own and start at 0 with its process."""

    peer_id: str
    name: str
    role: str
    state: str
    reason: str
    active_version: int | None
    version_lag: int | None
    tokens_per_s: float
    open_slots: int
    accepted: int
    dropped: int
    last_seen_s: float
    chunk_bytes_from_origin: int
    chunk_bytes_from_peers: int
    chunk_bytes_sent: int
    t_bcast_s: float | None  # from the announcement to its newest verified copy
    hardware: str
    region: str  # as its operator names it, empty if not known
    concurrent_rollouts: int  # that it generates at once
    cell_workers: int | None  # connected workers of a cell; None: not known, or it is a worker itself
    parents: tuple[str, ...]
    quarantined: bool
    standby: bool  # switched off by the capacity model or the operator
    pin: str  # "on" or "off" if the operator pinned it, else empty
    usd_per_hour: float
    reachability: str  # dialable, hole-punchable or only outwards
    nat: str  # NAT in front of it: one of coordinator.core.reach.holes.NAT_KINDS
    swap_kind: str  # how its engine's weights were exchanged last, keyframe or delta; empty: not reported
    swap_paused_s: float | None  # seconds for which nothing could be generated meanwhile
    swap_moved_bytes: int | None  # bytes that were moved to its devices
    engine_devices: int  # that its engine divides the model among; 0: not known
    engine_versions: int  # whose weights these have room for: 2, or 1 if each replaces the one before; 0: not known
    swap_read_back: bool  # whether its hash of the version is one of the weights read out of what generates


def version_lag(member: Member, newest: Version | None) -> int | None:
    """Return how many learner steps a member's version is behind the newest; None while either is not known."""
    return None if member.version is None or newest is None else newest - member.version


def took_s(state: CoreState, member: Member) -> float | None:
    """Return the seconds from announcement to verified copy of a member's newest version; None before it has one."""
    times = state.dissemination.times_of(member.peer_id)
    return None if times is None else times.seconds.last


def accept_share(member: Member) -> float | None:
    """Return the share of a member's ended attempts that was accepted; None before one ended."""
    ended = member.reputation.accepted + member.reputation.dropped
    return member.reputation.accepted / ended if ended else None


def shown_members(state: CoreState) -> list[Member]:
    """Return the members to list, in the order they joined: all, or in a large fleet those that most need attention."""
    if len(state.members) <= PEERS_SHOWN_MAX:
        return list(state.members)

    def worst_first(member: Member) -> tuple[bool, bool, int, int]:
        version = -1 if member.version is None else member.version
        return member.role != "origin", not member.reputation.quarantined, version, member.order

    return sorted(nsmallest(PEERS_SHOWN_MAX, state.members, key=worst_first), key=lambda member: member.order)


def peers_by_state(state: CoreState, here: Counter[tuple[str, str]]) -> tuple[PeersInState, ...]:
    """Count by role and state the connected members, of which ``here`` knows, those that left last, all banned ones."""
    banned = state.members.banned()
    gone = Counter(
        (departed.member.role, departed.how)
        for departed in state.members.departed()
        if departed.member.peer_id not in banned
    )
    all_of_them = here + gone + Counter({("peer", "banned"): len(banned)})
    return tuple(PeersInState(role, shown, count) for (role, shown), count in sorted(all_of_them.items()))


def workers_here(listed: Iterable[Mapping[str, Any]]) -> int:
    """Return how many workers have a session, from ``peers_by_state`` as the status has it in JSON."""
    return sum(one["count"] for one in listed if one["role"] == "peer" and one["state"] not in DEPARTED)


def peer_rows(state: CoreState, shown: Sequence[Member], now: float) -> tuple[PeerStatus, ...]:
    """Return the status of the shown members, then of those that left last."""
    gone = [
        replace(_peer_status(state, departed.member, now), state=departed.how, reason=departed.reason, tokens_per_s=0.0)
        for departed in state.members.departed()
    ]
    return (*(_peer_status(state, member, now) for member in shown), *gone)


def _peer_status(state: CoreState, member: Member, now: float) -> PeerStatus:
    facts = member.facts
    swap = None if facts is None else facts.swap
    parents = (state.members.get(peer_id) for peer_id in state.relay.parents_of(member.peer_id))
    return PeerStatus(
        peer_id=member.peer_id,
        name=member.name,
        role=member.role,
        state=member.state,
        reason="nothing to do now: the run is paused" if state.paused and member.state == "idle" else member.reason,
        active_version=member.version,
        version_lag=version_lag(member, state.newest_version),
        tokens_per_s=0.0 if facts is None else facts.tokens_per_second,
        open_slots=state.book.held_count(member.peer_id),
        accepted=member.reputation.accepted,
        dropped=member.reputation.dropped,
        last_seen_s=now - member.last_seen,
        chunk_bytes_from_origin=0 if facts is None else facts.chunk_bytes_from_origin,
        chunk_bytes_from_peers=0 if facts is None else facts.chunk_bytes_from_peers,
        chunk_bytes_sent=0 if facts is None else facts.chunk_bytes_sent,
        t_bcast_s=took_s(state, member),
        hardware=member.hardware,
        region=member.region,
        concurrent_rollouts=member.concurrent_rollouts,
        cell_workers=facts.cell_workers if facts is not None and member.is_cell else None,
        parents=tuple(parent.name for parent in parents if parent is not None),
        quarantined=bool(member.reputation.quarantined),
        standby=bool(member.reputation.standby),
        pin=member.reputation.pin,
        usd_per_hour=(state.offers.price_of(member.peer_id) or price(state.prices, member)).usd_per_hour,
        reachability=reachability(state, member.peer_id),
        nat=state.reach.of(member.peer_id).nat,
        swap_kind="" if swap is None else swap.kind,
        swap_paused_s=None if swap is None else swap.paused_s,
        swap_moved_bytes=None if swap is None else swap.moved_bytes,
        swap_read_back=swap is not None and swap.read_back,
        engine_devices=0 if facts is None else facts.engine_devices,
        engine_versions=0 if facts is None else facts.engine_versions,
    )
