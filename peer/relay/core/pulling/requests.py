"""Request late chunks by number (Request): from each source a window of them, some of a slow one elsewhere as well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_high

from peer.links.neighbours import DISK_ROLE
from peer.relay.core.pulling.late import late_below, stalled_after_s
from peer.relay.core.state.actions import SendGot, SendRequest
from peer.relay.core.state.events import LinkId
from peer.relay.core.state.reach import FARTHEST, distance_class
from peer.relay.core.state.relay_state import EncodingState, LinkState, RelayState, Source
from rollcast.wire.limits import REQUEST_CHUNKS_MAX
from rollcast.wire.versions.records import KEYFRAME_ID

_HEDGE_S_LEAST = 0.25
# All peers share the origin's uplink: it is asked for a chunk only this long after other sources could have been.
_ORIGIN_SPARED_S = 0.25
# For the last chunks: the uplinks are idle by then, and one slow source would delay the whole version.
_HEDGE_S_LEAST_AT_END = 0.1
_HEDGE_SERVICES_AT_END = 1.5
# A chunk requested from a source that has not answered yet is late after this many usual service times.
_HEDGE_SERVICES_UNKNOWN = 2.0
# What is left of the paces of a rank after the last source may round to 0.
_PACE_LEAST = 1e-9
# Chunks take long where each needs the time of two ticks.
_LONG_PACE_S = 0.1
# The service time of a source before any has answered.
_UNKNOWN_SERVICE_S = 0.25

_REACHED = ("peer", "origin")
_ROLE_ORDER = {"disk": -1, "peer": 0, "learner": 0, "mirror": 1, "origin": 2}


def request_all(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Request missing and late chunks, from each source its share and no more than its window allows."""
    if encoding.phase != "receiving" or not encoding.pulling:
        return
    if not any(_may_be_asked(encoding, source, now) for source in encoding.sources.values()):
        return
    missing = encoding.have.missing_below(late_below(state, encoding, now))
    on_disk = _on_disk(state, encoding)
    if on_disk:
        missing |= on_disk & encoding.have.missing_below(encoding.chunk_count)
    if not missing:
        return
    usual_s = _usual_service_s(encoding)
    weights = {link_id: _pace(source, usual_s, now) for link_id, source in encoding.sources.items()}
    ranks = _in_order(state, encoding, weights, now)
    if not ranks:
        return
    asked, late = _asked(state, encoding, usual_s, now)
    for sources in ranks:
        weight = sum(weights[link_id] for link_id in sources)
        for link_id in sources:
            to_ask = (missing & ~asked) | late
            if not to_ask:  # as nearly always: this function runs after each chunk that was pulled
                return
            share = math.ceil(to_ask.bit_count() * min(1.0, weights[link_id] / max(weight, _PACE_LEAST)))
            weight -= weights[link_id]
            elsewhere = 0 if state.links[link_id].role == DISK_ROLE else on_disk
            chosen = _choose(state, encoding, link_id, (missing & ~elsewhere, asked, late), share, now)
            if chosen:
                bits = encoding.have.bits_of(chosen)
                asked |= bits
                late &= ~bits


def _start(state: RelayState, encoding: EncodingState) -> int:
    """Return the chunk at which requests begin: peers that join together request different chunks and exchange them.

    They begin at chunk 0 for a delta, which is decoded in order as it comes, and for an encoding that one holder sends
    whole, which is best hashed in order.
    """
    if encoding.holder is not None or encoding.key.encoding_id != KEYFRAME_ID:
        return 0
    return int(state.settings.pull_from * encoding.chunk_count)


def _choose(
    state: RelayState, encoding: EncodingState, link_id: LinkId, chunks: tuple[int, int, int], share: int, now: float
) -> list[int]:
    """Request chunks from one source: first those not requested yet, then some that are late elsewhere.

    Args:
        chunks: the missing chunks, the requested ones, and those of them that are late, as by ``ChunkSet.as_int``.
        share: how many to request at most.

    Returns:
        The requested chunks; empty if the source claims none of them.
    """
    missing, asked, late = chunks
    source = encoding.sources[link_id]
    if not _may_be_asked(encoding, source, now):
        return []  # another one that declined was asked just now
    most = min(_spare(source), share, REQUEST_CHUNKS_MAX)
    mine = missing & (source.claimed or 0)
    if not mine:
        return []
    if state.links[link_id].role == "origin":
        mine &= encoding.have.missing_below(late_below(state, encoding, now - _ORIGIN_SPARED_S))
    chosen = encoding.have.first_of(mine & ~asked, most, _start(state, encoding))
    if len(chosen) < most and late:
        chosen += _hedges(state, encoding, source, mine & late, most - len(chosen))
    if chosen:
        if not source.requested:
            source.answered_at_s = now
        for index in chosen:
            source.requested[index] = now
        if source.declined:
            encoding.insisted_at_s = now
        state.do(SendRequest(link_id, encoding.key, tuple(chosen)))
    return chosen


def _on_disk(state: RelayState, encoding: EncodingState) -> int:
    """Return the chunks, as by ``ChunkSet.as_int``, that come from this machine's disk and from no other source."""
    chunks = 0
    for link_id, source in encoding.sources.items():
        if state.links[link_id].role == DISK_ROLE and not source.unanswered:
            chunks |= source.claimed or 0
    return chunks


def _may_be_asked(encoding: EncodingState, source: Source, now: float) -> bool:
    """Return whether a source claims chunks, has room for requests, and declined none a moment ago.

    Where chunks take long, sources that declined are asked again one at a time, in the time that a chunk takes to come:
    while all uplinks are full each of them declines, and requests and refusals would take the place of chunks.
    """
    if source.claimed is None or _spare(source) <= 0 or source.busy_until_s > now:
        return False
    if not source.declined:
        return True
    pace_s = encoding.known_pace_s(now)
    return pace_s < _LONG_PACE_S or now - encoding.insisted_at_s >= pace_s


def _spare(source: Source) -> int:
    """Return how many more chunks a source can be asked for now; none or fewer while its window is full."""
    return source.window.chunks - len(source.requested)


def _in_order(
    state: RelayState, encoding: EncodingState, paces: Mapping[LinkId, float], now: float
) -> list[list[LinkId]]:
    """Return the sources with room for requests, in ranks: those that always answered, then near ones, the origin last.

    The sources of one rank share the requests, the fastest of them first. Of what is not pushed here, sources with a
    shorter round trip come first as well, those that are farther than the reach are not asked, and those of other sites
    are not while one of this site can send all of it.
    """
    ranks: dict[tuple[int, bool, int, int], list[LinkId]] = {}
    joining = encoding.joining
    within_site = joining and any(_sends_all_nearby(state, *one) for one in encoding.sources.items())
    reach = _reach(state, encoding, now) if joining else FARTHEST
    for link_id, source in encoding.sources.items():
        link = state.links[link_id]
        if within_site and not link.lan and link.role != DISK_ROLE:
            continue
        distance = _distance(link) if joining else 0
        if link.role in _REACHED and distance > reach:
            continue
        if _may_be_asked(encoding, source, now):
            rank = source.unanswered, not link.lan, _ROLE_ORDER.get(link.role, 2), distance
            ranks.setdefault(rank, []).append(link_id)
    return [sorted(ranks[rank], key=lambda one: (-paces[one], one)) for rank in sorted(ranks)]


def _sends_all_nearby(state: RelayState, link_id: LinkId, source: Source) -> bool:
    return source.claims_all and not source.unanswered and state.links[link_id].lan


def _distance(link: LinkState) -> int:
    return FARTHEST if link.role == "origin" else distance_class(link.rtt_s)


def _reach(state: RelayState, encoding: EncodingState, now: float) -> int:
    """Return the farthest class of peers and origin that are asked; all are while none of them claims everything."""
    holders = [
        state.links[link_id]
        for link_id, source in encoding.sources.items()
        if source.claims_all and not source.unanswered
    ]
    classes = sorted({_distance(link) for link in holders if link.role in _REACHED})
    return encoding.reach.within(classes, encoding.have.count, now) if classes else FARTHEST


def _pace(source: Source, usual_s: float, now: float) -> float:
    """Return the chunks a second that a source answers: its window / its service time (Little's law).

    A request that waits longer than that time shows that the source has become slower.

    Args:
        usual_s: the usual service time of sources, for one that has not answered.
    """
    waited_s = now - next(iter(source.requested.values())) if source.requested else 0.0
    return source.window.size / max(source.window.service_s or usual_s, waited_s)


def _usual_service_s(encoding: EncodingState) -> float:
    """Return the median service time of the sources that have answered."""
    known = [source.window.service_s for source in encoding.sources.values() if source.window.service_s]
    return median_high(known) if known else _UNKNOWN_SERVICE_S


def _asked(state: RelayState, encoding: EncodingState, usual_s: float, now: float) -> tuple[int, int]:
    """Return the requested chunks, and those of them that are late wherever they were requested, as bits."""
    asked = patient = 0
    ending = encoding.chunk_count - encoding.have.count <= len(encoding.sources)
    most_s = stalled_after_s(state, encoding, now)
    for source in encoding.sources.values():
        if not source.requested:
            continue
        asked |= encoding.have.bits_of(source.requested)
        limit_s = _hedge_after_s(source, usual_s, most_s, ending)
        if now - next(reversed(source.requested.values())) <= limit_s:
            patient |= encoding.have.bits_of([i for i, at_s in source.requested.items() if now - at_s <= limit_s])
    return asked, asked & ~patient


def _hedge_after_s(source: Source, usual_s: float, most_s: float, ending: bool) -> float:
    """Return the seconds after which a chunk requested from a source is requested from another one as well.

    Args:
        usual_s: the usual service time of sources. At the end it counts for all: others are idle then.
        most_s: after this long a source counts as silent.
    """
    if ending:
        return max(_HEDGE_S_LEAST_AT_END, _HEDGE_SERVICES_AT_END * usual_s)
    late_s = source.window.late_after_s or _HEDGE_SERVICES_UNKNOWN * usual_s
    return max(_HEDGE_S_LEAST, min(most_s, late_s))


def _hedges(state: RelayState, encoding: EncodingState, source: Source, bits: int, most: int) -> list[int]:
    chosen = [index for index in encoding.have.first_of(bits, most) if index not in source.requested]
    state.counters.chunks_hedged += len(chosen)
    return chosen


def pulled(state: RelayState, encoding: EncodingState, link_id: LinkId, index: int, now: float) -> None:
    """Remove a chunk that came on a link from all requests; once a quarter of its source's window is free, request
    more."""
    source = encoding.sources.get(link_id)
    asked_at_s = source.requested.pop(index, None) if source is not None else None
    if source is not None and asked_at_s is not None:
        source.unanswered, source.declined, source.answered_at_s = 0, 0, now
        source.window.observe(now - asked_at_s, len(source.requested) + 1)
    for other_id, other in encoding.sources.items():
        if other.requested.pop(index, None) is not None:
            state.do(SendGot(other_id, encoding.key, (index,)))
    if source is not None and _spare(source) >= max(1, source.window.chunks // 4):
        request_all(state, encoding, now)
