"""Request the chunks that pushing did not bring, or will not.

Late joiners, resumed and slow peers, dead relays and the end of a broadcast are all the same case: a chunk did not
come, and another process holds it. A source is asked what it holds (Want), answers now and as that grows (Have), and is
asked for chunks by number (Request), a window of them at a time. A chunk that a source does not send in time is
requested from another one as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_high

from peer.links.neighbours import DISK_ROLE, MIRROR_ROLE, MIRROR_ROLES, EncodingKey, Neighbour
from peer.relay.core.actions import Dial, SendCancel, SendGot, SendRequest, SendWant
from peer.relay.core.chunk_set import ChunkSet
from peer.relay.core.events import CancelReceived, DeclineReceived, HaveReceived, LinkId
from peer.relay.core.state import EncodingState, LinkState, RelayState, Source
from peer.relay.core.window import ServiceWindow
from rollcast.wire.ids import Version
from rollcast.wire.limits import REQUEST_CHUNKS_MAX
from rollcast.wire.versions.records import KEYFRAME_ID

# A chunk is late if it is this many times as far behind the newest as chunks usually are on this peer.
_USUAL_LAGS = 1.5
_LAG_DECAY = 0.995
# One slow parent makes a stripe come seconds late, which must not teach this peer to wait for seconds: chunks are
# requested after _LAG_S_MOST, or after the time in which _LAG_CHUNKS_MOST chunks come where chunks take long.
_LAG_S_MOST = 1.0
_LAG_CHUNKS_MOST = 48
# The newest chunk is noted at most every _FRONTIER_STEP_S, and _FRONTIERS_MOST of these notes are kept.
_FRONTIER_STEP_S = 0.02
_FRONTIERS_MOST = 512

# In the last share of an encoding a chunk is late as soon as it is further behind than any chunk was lately: nothing
# comes after it that would hide the wait. Sooner, everything that is on its way down a tree would be requested as well.
_END_SHARE = 0.02
_HEDGE_S_LEAST = 0.25
# All peers share the origin's uplink: it is asked for a chunk only this long after other sources could have been.
_ORIGIN_SPARED_S = 0.25
# For the last chunks: the uplinks are idle by then, and one slow source would delay the whole version.
_HEDGE_S_LEAST_AT_END = 0.1
_HEDGE_SERVICES_AT_END = 1.5

# A chunk requested from a source that has not answered yet is late after this many usual service times.
_HEDGE_SERVICES_UNKNOWN = 2.0
# A source that declined requests is asked for nothing for this long.
_BUSY_S = 0.3
# Round trips up to this are all near.
_NEAR_RTT_S = 0.005
_DISTANCES = 8
# What is left of the paces of a rank after the last source may round to 0.
_PACE_LEAST = 1e-9
# The service time of a source before any has answered.
_UNKNOWN_SERVICE_S = 0.25

_ROLE_ORDER = {"disk": -1, "peer": 0, "learner": 0, "mirror": 1, "origin": 2}

# ---------------------------------------------------------------- what is late


def note_arrival(encoding: EncodingState, index: int, now: float) -> None:
    """Note a pushed chunk: whether it is the newest, or else how long after a newer one it came."""
    encoding.pushed_at_s = now
    if index > encoding.frontier:
        encoding.frontier = index
        times = encoding.frontier_at
        if not times or now - times[-1][0] >= _FRONTIER_STEP_S:
            times.append((now, index))
            if len(times) > _FRONTIERS_MOST:
                times.popleft()
        return
    passed_at_s = _passed_at(encoding, index)
    lag_s = 0.0 if passed_at_s is None else now - passed_at_s
    encoding.lag_s = max(encoding.lag_s * _LAG_DECAY, lag_s)


def _passed_at(encoding: EncodingState, index: int) -> float | None:
    """Return when a chunk with this index or a higher one first came; None if that is longer ago than is noted."""
    passed_at_s = None
    for at_s, frontier in reversed(encoding.frontier_at):  # most chunks are hardly behind the newest
        if frontier < index:
            break
        passed_at_s = at_s
    return passed_at_s


def _late_below(state: RelayState, encoding: EncodingState, now: float) -> int:
    """Return the index below which every chunk should have come by push; all chunks if no more pushes are expected."""
    settings = state.settings
    ending = encoding.frontier >= encoding.chunk_count * (1.0 - _END_SHARE) - 1
    least_s = settings.late_s_least_at_end if ending else settings.late_s_least
    usual_s = min(encoding.lag_s, _LAG_S_MOST) if ending else _usual_s(encoding, now)
    before_s = now - max(least_s, usual_s)
    below = next((frontier for at_s, frontier in reversed(encoding.frontier_at) if at_s <= before_s), 0)
    if encoding.pushed_at_s <= before_s:
        below = max(below, encoding.frontier)  # not every rise is noted
    quiet = now - encoding.pushed_at_s >= _quiet_s(state, encoding)
    quiet |= 0.0 < encoding.all_claimed_at_s <= now - settings.late_s_least
    pushed = _expects_pushes(state) and encoding.holder is None
    return below if pushed and not quiet else encoding.chunk_count


def _usual_s(encoding: EncodingState, now: float) -> float:
    """Return how far behind the newest a chunk may be: as usual on this peer, unless that shows only a slow parent."""
    pace_s = (now - encoding.announced_at_s) / max(1, encoding.have.count)
    return min(_USUAL_LAGS * encoding.lag_s, max(_LAG_S_MOST, _LAG_CHUNKS_MOST * pace_s))


def _expects_pushes(state: RelayState) -> bool:
    """Return whether a parent of the plan is connected: some may refuse this peer."""
    return any(peer_id in state.link_to for peer_id in state.plan.parents)


def _quiet_s(state: RelayState, encoding: EncodingState) -> float:
    """Return the seconds without a pushed chunk after which no more pushes are expected."""
    if not encoding.pushed:
        return 0.0
    settings = state.settings
    if any(source.claims_all for source in encoding.sources.values()):
        return settings.late_s_least  # whatever was still to be pushed, it can be requested now
    return max(settings.late_s_least, min(settings.stall_timeout_s, _usual_s(encoding, state.now_s)))


# ---------------------------------------------------------------- when to ask, and which source


def watch(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Request late chunks; ask further sources if nothing comes at all."""
    if not encoding.announced and encoding.holder is None:
        return
    _watch_list(state, encoding, now)
    if encoding.phase != "receiving":
        return
    late_below = _late_below(state, encoding, now)
    if not encoding.pulling:
        missing_late = late_below > 0 and bool(encoding.have.missing_below(late_below))
        if not (missing_late or encoding.ending or _may_be_on_disk(state, encoding)):
            return
        encoding.pulling = True
        want_from_all(state, encoding, now)
    if now - encoding.searched_at_s >= state.settings.stall_timeout_s:
        _search_further(state, encoding, now)
    elif _give_up_on_silent(state, encoding, now):
        ask_next(state, encoding, now)
    request_all(state, encoding, now)


def _give_up_on_silent(state: RelayState, encoding: EncodingState, now: float) -> bool:
    """Release the requests of silent sources for other sources; return whether there were any.

    Chunks that come from elsewhere must not hide that a source is silent, so each source has its own clock.
    """
    silent_since_s = now - state.settings.stall_timeout_s
    silent = [
        one for one, source in encoding.sources.items() if source.requested and source.answered_at_s <= silent_since_s
    ]
    for link_id in silent:
        want(state, encoding, state.links[link_id], now)
    return bool(silent)


def _watch_list(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Ask for the chunk list if it did not come with the announcement."""
    if encoding.phase != "waiting":
        return
    patience_s = state.settings.list_patience_s if encoding.pushed and _expects_pushes(state) else 0.0
    first = not encoding.sources and now - encoding.announced_at_s >= patience_s
    again = bool(encoding.sources) and now - encoding.searched_at_s >= state.settings.stall_timeout_s
    if first or again:
        encoding.searched_at_s = now
        if not ask_next(state, encoding, now):
            _ask_again(state, encoding, now)


def want_from_all(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Ask mirrors and every neighbour what they hold; if there is none to ask, another holder."""
    _ask_mirrors(state, encoding, now)
    for link in state.link_to.values():
        if len(encoding.sources) >= state.settings.sources_most:
            return
        wanted = link.link == encoding.holder or (encoding.announced and state.helps(link))
        if wanted and _willing(state, encoding, link, now) and link.link not in encoding.sources:
            want(state, encoding, link, now)
    if not encoding.sources:
        ask_next(state, encoding, now)


def _ask_mirrors(state: RelayState, encoding: EncodingState, now: float) -> None:
    for mirror in state.plan.fallbacks:
        if mirror.role not in MIRROR_ROLES or not of_use(state, encoding, mirror.role):
            continue
        link = state.link_to.get(mirror.peer_id)
        if link is None:
            dial(state, mirror, now)
        elif link.link not in encoding.sources and _willing(state, encoding, link, now):
            want(state, encoding, link, now)


def of_use(state: RelayState, encoding: EncodingState, role: str) -> bool:
    """Return whether a mirror is asked for an encoding at once, although neighbours have it.

    It is for a keyframe that is not pushed: those who join should not take all of it from the others. A file on this
    disk is also asked for what is pushed.
    """
    if encoding.key.encoding_id != KEYFRAME_ID or not encoding.announced:
        return False
    not_pushed = encoding.is_base or not encoding.pushed
    return not_pushed if role == MIRROR_ROLE else role == DISK_ROLE and _may_be_on_disk(state, encoding)


def _may_be_on_disk(state: RelayState, encoding: EncodingState) -> bool:
    """Return whether this machine may have public weights with the encoding: they are version 0's."""
    is_first = encoding.announced and encoding.key == EncodingKey(Version(0), KEYFRAME_ID)
    return is_first and any(one.role == DISK_ROLE for one in state.plan.fallbacks)


def _willing(state: RelayState, encoding: EncodingState, link: LinkState, now: float) -> bool:
    return encoding.refused_until_s.get(link.peer_id, 0.0) <= now and not state.penalised(link.peer_id, now)


def ask_next(state: RelayState, encoding: EncodingState, now: float) -> bool:
    """Ask one more holder what it holds, dialling it if necessary; return False if there is none."""
    if not encoding.announced:
        return False  # only the learner, which sends it here, has it
    asked = {state.links[link_id].peer_id for link_id in encoding.sources}
    for neighbour in (*state.plan.neighbours, *state.plan.fallbacks, *state.further):
        peer_id = neighbour.peer_id
        refused = encoding.refused_until_s.get(peer_id, 0.0) > now or state.penalised(peer_id, now)
        if peer_id in asked or refused:
            continue
        link = state.link_to.get(peer_id)
        if link is not None:
            want(state, encoding, link, now)
            return True
        if dial(state, neighbour, now):
            encoding.awaited = peer_id
            return True
    return False


def dial(state: RelayState, neighbour: Neighbour, now: float) -> bool:
    """Dial a neighbour; return whether a dial is in progress.

    It is not dialled if it is to dial this process, has no address, or failed a moment ago.
    """
    if not neighbour.we_dial or not neighbour.address:
        return False
    dialling = state.dial_state(neighbour.peer_id)
    if dialling.dialling:
        return True
    if dialling.retry_at_s > now or (neighbour in state.further and not _room_for_further(state)):
        return False
    dialling.dialling = True
    state.do(Dial(neighbour))
    return True


def _room_for_further(state: RelayState) -> bool:
    """Return whether another holder beyond the plan may be dialled: few are, because each serves its own neighbours."""
    further = {holder.peer_id for holder in state.further} - state.neighbours.keys()
    busy = sum(peer_id in state.link_to or state.dial_state(peer_id).dialling for peer_id in further)
    return busy < state.settings.further_links_most


def want(state: RelayState, encoding: EncodingState, link: LinkState, now: float) -> None:
    """Ask the other end what it holds; a repeated question gives up on the chunks that were requested from it."""
    if encoding.awaited == link.peer_id:
        encoding.awaited = None
    source = encoding.sources.get(link.link)
    if source is None:
        first = state.settings.window_first
        if link.link == encoding.holder or link.role in ("learner", *MIRROR_ROLES):
            first = state.settings.window_first_of_holder
        encoding.sources[link.link] = Source(ServiceWindow(first))
    else:
        source.unanswered += bool(source.requested)
        source.requested.clear()
    state.do(SendWant(link.link, encoding.key, not encoding.listed))


def _search_further(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Discard all requests, because no chunk came for long, and ask every source again and one holder more."""
    encoding.searched_at_s = now
    encoding.awaited = None
    _ask_again(state, encoding, now)
    want_from_all(state, encoding, now)
    ask_next(state, encoding, now)


def _ask_again(state: RelayState, encoding: EncodingState, now: float) -> None:
    for link_id in encoding.sources:
        want(state, encoding, state.links[link_id], now)


# ---------------------------------------------------------------- requests


def request_all(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Request missing and late chunks, from each source its share and no more than its window allows."""
    if encoding.phase != "receiving" or not encoding.pulling:
        return
    missing = encoding.have.missing_below(_late_below(state, encoding, now))
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
    most = min(_spare(source), share, REQUEST_CHUNKS_MAX)
    mine = missing & (source.claimed or 0)
    if not mine:
        return []
    if state.links[link_id].role == "origin":
        mine &= encoding.have.missing_below(_late_below(state, encoding, now - _ORIGIN_SPARED_S))
    chosen = encoding.have.first_of(mine & ~asked, most, _start(state, encoding))
    if len(chosen) < most and late:
        chosen += _hedges(state, encoding, source, mine & late, most - len(chosen))
    if chosen:
        if not source.requested:
            source.answered_at_s = now
        for index in chosen:
            source.requested[index] = now
        state.do(SendRequest(link_id, encoding.key, tuple(chosen)))
    return chosen


def _on_disk(state: RelayState, encoding: EncodingState) -> int:
    """Return the chunks, as by ``ChunkSet.as_int``, that come from this machine's disk and from no other source."""
    chunks = 0
    for link_id, source in encoding.sources.items():
        if state.links[link_id].role == DISK_ROLE and not source.unanswered:
            chunks |= source.claimed or 0
    return chunks


def _spare(source: Source) -> int:
    """Return how many more chunks a source can be asked for now; none or fewer while its window is full."""
    return source.window.chunks - len(source.requested)


def _in_order(
    state: RelayState, encoding: EncodingState, paces: Mapping[LinkId, float], now: float
) -> list[list[LinkId]]:
    """Return the sources with room for requests, in ranks: those that always answered, then near ones, the origin last.

    The sources of one rank share the requests, the fastest of them first. Of what is not pushed, sources with a shorter
    round trip come first as well, and those of other sites are not asked while one of this site can send all of it.
    """
    ranks: dict[tuple[int, bool, int, int], list[LinkId]] = {}
    joining = not encoding.pushed
    within_site = joining and any(_sends_all_nearby(state, *one) for one in encoding.sources.items())
    for link_id, source in encoding.sources.items():
        link = state.links[link_id]
        if within_site and not link.lan and link.role != DISK_ROLE:
            continue
        if source.claimed is not None and _spare(source) > 0 and source.busy_until_s <= now:
            distance = _distance(link.rtt_s) if joining else 0
            rank = source.unanswered, not link.lan, _ROLE_ORDER.get(link.role, 2), distance
            ranks.setdefault(rank, []).append(link_id)
    return [sorted(ranks[rank], key=lambda one: (-paces[one], one)) for rank in sorted(ranks)]


def _sends_all_nearby(state: RelayState, link_id: LinkId, source: Source) -> bool:
    return source.claims_all and not source.unanswered and state.links[link_id].lan


def _distance(rtt_s: float) -> int:
    """Return a class of round trips that doubles with each: 0 up to 5 ms, the last if it is unknown."""
    if rtt_s <= 0.0:
        return _DISTANCES - 1
    return min(_DISTANCES - 1, max(0, math.ceil(math.log2(rtt_s / _NEAR_RTT_S))))


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
    for source in encoding.sources.values():
        if not source.requested:
            continue
        asked |= encoding.have.bits_of(source.requested)
        limit_s = _hedge_after_s(state, source, usual_s, ending)
        if now - next(reversed(source.requested.values())) <= limit_s:
            patient |= encoding.have.bits_of([i for i, at_s in source.requested.items() if now - at_s <= limit_s])
    return asked, asked & ~patient


def _hedge_after_s(state: RelayState, source: Source, usual_s: float, ending: bool) -> float:
    """Return the seconds after which a chunk requested from a source is requested from another one as well.

    Args:
        usual_s: the usual service time of sources. At the end it counts for all: others are idle then.
    """
    if ending:
        return max(_HEDGE_S_LEAST_AT_END, _HEDGE_SERVICES_AT_END * usual_s)
    late_s = source.window.late_after_s or _HEDGE_SERVICES_UNKNOWN * usual_s
    return max(_HEDGE_S_LEAST, min(state.settings.stall_timeout_s, late_s))


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
        source.unanswered, source.answered_at_s = 0, now
        source.window.observe(now - asked_at_s, len(source.requested) + 1)
    for other_id, other in encoding.sources.items():
        if other.requested.pop(index, None) is not None:
            state.do(SendGot(other_id, encoding.key, (index,)))
    if source is not None and _spare(source) >= max(1, source.window.chunks // 4):
        request_all(state, encoding, now)


# ---------------------------------------------------------------- answers


def source_claims(state: RelayState, event: HaveReceived, now: float) -> None:
    """Note what a source claims to hold, and request late chunks."""
    encoding = state.encodings.get(event.key)
    source = encoding.sources.get(event.link) if encoding else None
    if encoding is None or source is None:
        return
    claimed = ChunkSet.from_bitmap(encoding.chunk_count, event.bitmap) if event.bitmap else None
    if event.complete:
        claimed = ChunkSet.full(encoding.chunk_count)
    claimed = claimed or ChunkSet(encoding.chunk_count)
    source.claimed = claimed.as_int()
    source.claims_all = claimed.complete
    if claimed.complete and not encoding.all_claimed_at_s:
        encoding.all_claimed_at_s = now
    for index in [index for index in source.requested if index not in claimed]:
        del source.requested[index]
    request_all(state, encoding, now)


def source_declines(state: RelayState, event: DeclineReceived, now: float) -> None:
    """Request chunks elsewhere that a source will not send soon, and ask it for none for a moment."""
    encoding = state.encodings.get(event.key)
    source = encoding.sources.get(event.link) if encoding else None
    if encoding is None or source is None:
        return
    source.busy_until_s = now + _BUSY_S
    source.unanswered, source.answered_at_s = 0, now
    for index in event.indices:
        source.requested.pop(index, None)
    request_all(state, encoding, now)


def source_cancelled(state: RelayState, event: CancelReceived, now: float) -> None:
    """Remove a source that refused or gave up, and ask another one if it was the last."""
    encoding = state.encodings.get(event.key)
    link = state.links.get(event.link)
    if encoding is None or link is None or event.link not in encoding.sources:
        return
    del encoding.sources[event.link]
    # Asked again at once it would refuse again, as fast as the network allows.
    encoding.refused_until_s[link.peer_id] = now + state.settings.stall_timeout_s
    if encoding.in_flight and not encoding.sources:
        ask_next(state, encoding, now)


def lose_link(state: RelayState, link_id: LinkId, now: float) -> None:
    """Remove a lost link from all sources; its requests go to the others."""
    for encoding in list(state.encodings.values()):
        if encoding.holder == link_id:
            encoding.holder = None
        if encoding.sources.pop(link_id, None) is not None and encoding.in_flight:
            if encoding.sources:
                request_all(state, encoding, now)
            else:
                ask_next(state, encoding, now)


def stop(state: RelayState, encoding: EncodingState, reason: str) -> None:
    """Cancel all requests for an encoding."""
    for link_id in encoding.sources:
        state.do(SendCancel(link_id, encoding.key, reason))
    encoding.sources.clear()
    encoding.awaited = None
