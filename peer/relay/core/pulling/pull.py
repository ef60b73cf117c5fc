"""Begin, continue and end the pulling of an encoding: as time passes, and as sources answer, decline or leave."""

from __future__ import annotations

from peer.relay.core.pulling.late import expects_pushes, late_below, stalled_after_s
from peer.relay.core.pulling.requests import request_all
from peer.relay.core.pulling.sources import ask_again, ask_next, may_be_on_disk, search_further, want, want_from_all
from peer.relay.core.state.actions import SendCancel
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import CancelReceived, DeclineReceived, HaveReceived, LinkId
from peer.relay.core.state.relay_state import EncodingState, RelayState

# A source that declined requests is asked for nothing for this long, and for twice as long after each further time in a
# row, but no longer than some chunks take to come: where all uplinks are full, requests and refusals would only fill
# them further.
_BUSY_S = 0.3
_BUSY_DOUBLINGS_MOST = 3
_BUSY_CHUNKS_MOST = 8


def watch(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Request late chunks; ask further sources if nothing comes at all."""
    if not encoding.announced and encoding.holder is None:
        return
    _watch_list(state, encoding, now)
    if encoding.phase != "receiving":
        return
    below = late_below(state, encoding, now)
    if not encoding.pulling:
        missing_late = below > 0 and bool(encoding.have.missing_below(below))
        if not (missing_late or encoding.ending or may_be_on_disk(state, encoding)):
            return
        encoding.pulling = True
        want_from_all(state, encoding, now)
    if now - encoding.searched_at_s >= stalled_after_s(state, encoding, now):
        search_further(state, encoding, now)
    elif _give_up_on_silent(state, encoding, now):
        ask_next(state, encoding, now)
    request_all(state, encoding, now)


def _give_up_on_silent(state: RelayState, encoding: EncodingState, now: float) -> bool:
    """Release the requests of silent sources for other sources; return whether there were any.

    Chunks that come from elsewhere must not hide that a source is silent, so each source has its own clock.
    """
    silent_since_s = now - stalled_after_s(state, encoding, now)
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
    patience_s = state.settings.list_patience_s if encoding.pushed and expects_pushes(state) else 0.0
    first = not encoding.sources and now - encoding.announced_at_s >= patience_s
    again = bool(encoding.sources) and now - encoding.searched_at_s >= state.settings.stall_timeout_s
    if first or again:
        encoding.searched_at_s = now
        if not ask_next(state, encoding, now):
            ask_again(state, encoding, now)


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
    doublings = 0 if encoding.ending else min(source.declined, _BUSY_DOUBLINGS_MOST)
    busy_s = min(_BUSY_S * 2.0**doublings, max(_BUSY_S, _BUSY_CHUNKS_MOST * encoding.known_pace_s(now)))
    source.busy_until_s = now + busy_s
    source.declined += 1
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
