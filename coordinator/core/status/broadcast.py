"""Describe a broadcast for people: how far each peer is, over which hops, how fast, and what it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

import msgspec
import numpy as np

from coordinator.core.broadcast.dissemination import Broadcast
from coordinator.core.decisions.state import CoreState
from coordinator.core.members.membership import Member
from coordinator.core.status.hops import Hop, HopRates, find_hops
from coordinator.core.status.turns import Turns, slices
from coordinator.core.traversal.status import ReachCounts, ReachStatus, build_reach_status
from rollcast.wire.ids import Version
from rollcast.wire.limits import HEAT_MAP_CELLS_MAX, SILENT_S

PEERS_SHOWN_MAX = 512
"""Most peers that are listed one by one; those furthest behind are among them."""
_PACE_KNOWN_SHARE = 0.05  # share of a version below which the pace so far says little


@dataclass(frozen=True, slots=True)
class EncodingStatus:
    """One encoding of the newest version; ``receiving`` is the number of peers that receive it at this moment."""

    encoding_id: int
    kind: str
    base_version: int | None
    size_bytes: int
    receiving: int


@dataclass(frozen=True, slots=True)
class PeerCounts:
    """Number of peers that take part (connected, not quarantined), and of those that hold the newest version."""

    have: int
    total: int


@dataclass(frozen=True, slots=True)
class BroadcastSeconds:
    """T_bcast of the last version and percentiles over versions, in seconds; None without a measurement."""

    last: float | None
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """The relay plan.

    Args:
        made: number of plans since the coordinator started.
        replans: number of them since the newest version was announced.
    """

    made: int
    mode: str  # none, mesh or trees
    stripes: int  # direct copies included
    replans: int


@dataclass(frozen=True, slots=True)
class BroadcastTotals:
    """Chunk bytes and counts of all peers since the coordinator started, including peers that left.

    ``origin_share`` is None before the first byte.
    """

    bytes_from_origin: int
    bytes_from_peers: int
    origin_share: float | None
    bytes_saved_by_deltas: int
    chunks_duplicate: int
    chunks_hedged: int
    chunks_rejected: int
    reparentings: int
    addresses_refused: int


@dataclass(frozen=True, slots=True)
class BroadcastPeer:
    """One member of a broadcast. Rates are in bytes a second, None while not measured.

    ``t_last_s``, ``t_p50_s`` and ``t_p95_s`` are seconds from announcement to verified copy.
    """

    peer_id: str
    name: str
    role: str
    state: str
    version: int | None
    share_held: float
    heat_map: str  # two hex digits a cell: held share of that section of the version, 00 to ff; empty if not known
    encoding_id: int | None  # that it is receiving; None if none
    t_last_s: float | None
    t_p50_s: float | None
    t_p95_s: float | None
    times_last: int
    uplink_bytes_per_s: float | None
    uplink_measured_s: float
    uplink_age_s: float | None
    downlink_bytes_per_s: float | None
    parents: int
    last_seen_s: float


@dataclass(frozen=True, slots=True)
class BroadcastStatus:
    """The broadcast of the newest version at one moment; durations in seconds, heat maps as in BroadcastPeer."""

    run_name: str
    version: int | None
    running: bool
    started_s_ago: float | None
    waiting_for: str
    next: str
    encoding: EncodingStatus | None  # the one that most peers are receiving, else the smallest
    encodings: tuple[EncodingStatus, ...]
    bytes_per_peer: float | None
    peers_holding: PeerCounts
    heat_map: str  # mean over all peers
    t_bcast_s: BroadcastSeconds
    t_peer_s: BroadcastHistogram
    plan: PlanStatus
    totals: BroadcastTotals
    reach: ReachStatus
    peers: tuple[BroadcastPeer, ...]  # origins, then those furthest behind, then those that took longest
    peers_left_out: int
    hop_rates: HopRates
    hops: tuple[Hop, ...]
    hops_left_out: int

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain dicts, lists, strings and numbers, for json.dumps."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


@dataclass(frozen=True, slots=True)
class BroadcastHistogram:
    """Histogram of each peer's seconds from announcement to verified copy since the start.

    ``at_most`` counts the values up to each bound, and last all of them.
    """

    bounds: tuple[float, ...]
    at_most: tuple[int, ...]  # one longer than bounds
    sum: float


def build_broadcast_status(state: CoreState, *, now: float) -> Turns[BroadcastStatus]:
    """Build the status of the broadcast from the core's state, in turns."""
    newest, broadcast = state.newest_version, _broadcast_of(state)
    taking_part = [
        one for one in state.members if one.role == "peer" and not one.reputation.quarantined and one.receives
    ]
    yield
    missing = [one for one in taking_part if share_held(one, newest) < 1.0]
    encodings = _encodings(broadcast, missing)
    yield
    shown, left_out = yield from _shown(state)
    hops = find_hops(state, shown)
    yield
    reach_counts = ReachCounts()
    for members in slices(tuple(state.members)):  # 10,000 with their links take 40 ms
        reach_counts.add(state, members)
        yield
    totals = _totals(state)
    seconds, spread = state.dissemination.seconds, state.dissemination.peer_seconds
    waiting_for, following = _waiting(state, taking_part, missing, now)
    return BroadcastStatus(
        run_name=state.settings.run_name,
        version=newest,
        running=bool(missing) and newest is not None and not state.ended,
        started_s_ago=None if broadcast is None else now - broadcast.announced_at,
        waiting_for=waiting_for,
        next=following,
        encoding=min(encodings, key=lambda one: (-one.receiving, one.size_bytes), default=None),
        encodings=encodings,
        bytes_per_peer=None if broadcast is None else broadcast.bytes_per_peer,
        peers_holding=PeerCounts(0 if newest is None else len(taking_part) - len(missing), len(taking_part)),
        heat_map=_mean_heat_map(missing, len(taking_part), newest),
        t_bcast_s=BroadcastSeconds(seconds.last, seconds.percentile(50), seconds.percentile(95)),
        t_peer_s=BroadcastHistogram(spread.bounds, spread.at_most(), spread.sum),
        plan=_plan(state, broadcast),
        totals=totals,
        reach=build_reach_status(state, reach_counts),
        peers=tuple(_peer(state, member, now) for member in shown),
        peers_left_out=left_out,
        hop_rates=hops.rates,
        hops=hops.listed,
        hops_left_out=hops.left_out,
    )


def share_held(member: Member, newest: Version | None) -> float:
    """Return the share, 0 to 1, of the newest version's chunks that a member holds; 1 only once it is verified.

    The share is of the chunks of the encoding that the member receives; without a newest version it is 0.
    """
    if newest is None:
        return 0.0
    if member.version is not None and member.version >= newest:
        return 1.0
    facts = member.facts
    if facts is None or facts.receiving_version != newest:
        return 0.0
    return min(facts.receiving_chunks_have / facts.receiving_chunks_total, 0.999)  # not verified as a whole yet


def furthest_behind(members: Sequence[Member], newest: Version | None) -> Member:
    """Return the member that holds least of the newest version; of several, the one that joined first."""
    return min(members, key=lambda one: (share_held(one, newest), one.order))


# ---------------------------------------------------------------- components


def _broadcast_of(state: CoreState) -> Broadcast | None:
    """Return the newest version's broadcast; None before the first one, and if another coordinator announced it."""
    broadcast = state.dissemination.newest
    return broadcast if broadcast is not None and broadcast.version == state.newest_version else None


def _encodings(broadcast: Broadcast | None, missing: Iterable[Member]) -> tuple[EncodingStatus, ...]:
    if broadcast is None:
        return ()
    receiving = Counter(
        one.facts.receiving_encoding_id
        for one in missing
        if one.facts is not None and one.facts.receiving_version == broadcast.version
    )
    return tuple(
        EncodingStatus(one.encoding_id, one.kind, one.base_version, one.size_bytes, receiving[one.encoding_id])
        for one in broadcast.encodings
    )


def _plan(state: CoreState, broadcast: Broadcast | None) -> PlanStatus:
    relay = state.relay
    before = None if broadcast is None else broadcast.plan_id
    replans = 0 if before is None else relay.plan_id - before
    return PlanStatus(relay.plans_made, relay.mode, relay.stripe_count, replans)


def _totals(state: CoreState) -> BroadcastTotals:
    totals, peer_share = state.traffic.totals, state.traffic.peer_share
    return BroadcastTotals(
        bytes_from_origin=totals.from_origin,
        bytes_from_peers=totals.from_peers,
        origin_share=None if peer_share is None else 1.0 - peer_share,
        bytes_saved_by_deltas=totals.delta_bytes_saved,
        chunks_duplicate=totals.duplicate,
        chunks_hedged=totals.hedged,
        chunks_rejected=totals.rejected,
        reparentings=totals.reparentings,
        addresses_refused=totals.addresses_refused,
    )


def _shown(state: CoreState) -> Turns[tuple[list[Member], int]]:
    """Return the members that are listed, and the number of those that are not, in turns."""
    newest, times_of = state.newest_version, state.dissemination.times_of

    def worst_first(member: Member) -> tuple[bool, float, float, int]:
        times = times_of(member.peer_id)
        took_s = 0.0 if times is None else times.seconds.last or 0.0
        return member.role != "origin", share_held(member, newest), -took_s, member.order

    members, shown = tuple(state.members), list[Member]()
    for some in slices(members):
        shown = nsmallest(PEERS_SHOWN_MAX, [*shown, *some], key=worst_first)
        yield
    return shown, len(members) - len(shown)


def _peer(state: CoreState, member: Member, now: float) -> BroadcastPeer:
    facts, times, newest = member.facts, state.dissemination.times_of(member.peer_id), state.newest_version
    share = share_held(member, newest)
    receiving = facts is not None and share < 1.0 and facts.receiving_version == newest
    uplink = None if facts is None or not facts.uplink_bytes_per_second else facts
    last_seen_s = now - member.last_seen
    return BroadcastPeer(
        peer_id=member.peer_id,
        name=member.name,
        role=member.role,
        state=member.state,
        version=member.version,
        share_held=share,
        heat_map=facts.receiving_map.hex() if facts is not None and receiving else "",
        encoding_id=facts.receiving_encoding_id if facts is not None and receiving else None,
        t_last_s=None if times is None else times.seconds.last,
        t_p50_s=None if times is None else times.seconds.percentile(50),
        t_p95_s=None if times is None else times.seconds.percentile(95),
        times_last=0 if times is None else times.times_last,
        uplink_bytes_per_s=None if uplink is None else uplink.uplink_bytes_per_second,
        uplink_measured_s=0.0 if uplink is None else uplink.uplink_measured_s,
        uplink_age_s=None if uplink is None else uplink.uplink_age_s + last_seen_s,
        downlink_bytes_per_s=None if facts is None else facts.downlink_bytes_per_second or None,
        parents=len(state.relay.parents_of(member.peer_id)),
        last_seen_s=last_seen_s,
    )


def _mean_heat_map(missing: Sequence[Member], taking_part: int, newest: Version | None) -> str:
    """Return the mean heat map of the newest version over its receivers; empty before the first version."""
    if newest is None or not taking_part:
        return ""
    maps = [
        one.facts.receiving_map
        for one in missing
        if one.facts is not None and one.facts.receiving_version == newest and one.facts.receiving_map
    ]
    cells = max((len(one) for one in maps), default=HEAT_MAP_CELLS_MAX)
    total = np.full(cells, 255 * (taking_part - len(missing)), np.int64)
    for one in maps:
        total += np.frombuffer(one, np.uint8)[np.arange(cells) * len(one) // cells]
    return (total // taking_part).astype(np.uint8).tobytes().hex()


# ---------------------------------------------------------------- words


def _waiting(state: CoreState, taking_part: Sequence[Member], missing: Sequence[Member], now: float) -> tuple[str, str]:
    """Return what the broadcast waits for, empty if nothing, and what happens next."""
    newest = state.newest_version
    if state.ended:
        return "", f"the run is over: {state.ended}"
    if newest is None:
        return "the learner to announce its first version", "peers receive it"
    if not taking_part:
        return "a peer to join", f"it receives version {newest}"
    if not missing:
        return "", "the learner publishes the next version"
    if len(missing) == len(taking_part) and state.members.origin is None:
        return f"an origin to join: no connected member holds version {newest}", "it sends the version"
    slowest = furthest_behind(missing, newest)
    others = len(missing) - 1
    rest = f", and {others} more peer{'s' if others > 1 else ''}" if others else ""
    silent_s = now - slowest.last_seen
    if silent_s > SILENT_S:
        following = f"it counts as lost after {state.settings.heartbeat_timeout_s:g} s of silence"
        return f"{slowest.name}, which has been silent for {silent_s:.0f} s{rest}", following
    return (
        f"{slowest.name}, {_how_far(state, slowest, now)}{rest}",
        f"T_bcast of version {newest} is measured once all hold it",
    )


def _how_far(state: CoreState, member: Member, now: float) -> str:
    """Return how much of the newest version a member holds and, at the pace so far, how long the rest takes."""
    newest, broadcast = state.newest_version, _broadcast_of(state)
    share = share_held(member, newest)
    if share == 0.0:
        return f"which has received nothing of version {newest} yet"
    text = f"which holds {share:.0%} of version {newest}"
    if broadcast is None or share < _PACE_KNOWN_SHARE:
        return text
    since_s = now - max(broadcast.announced_at, member.joined_at)
    return f"{text}, about {since_s * (1.0 - share) / share:.0f} s from the end at its pace so far"
