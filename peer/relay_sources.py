"""Whom the relay asks for chunks, how much credit it gives them, and what it does when nothing comes."""

from __future__ import annotations

from peer.chunk_set import ChunkSet
from peer.relay_actions import Dial, SendCancel, SendCredit, SendHave, SendWant
from peer.relay_events import CancelReceived, EncodingKey, HaveReceived, LinkId, Neighbour
from peer.relay_serving import send_have
from peer.relay_state import EncodingState, LinkState, RelayState, Source

# A parent that has passed on all it claims to hold is probably waiting itself: its own stall is answered first.
STARVED_PATIENCE = 2.0


def seek(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Make sure that somebody is asked for the encoding, the best candidate first."""
    if not encoding.in_flight:
        return
    announcer = state.links.get(encoding.announced_on) if encoding.announced_on is not None else None
    refused = announcer is not None and encoding.refused_until_s.get(announcer.peer_id, 0.0) > now
    if announcer is not None and announcer.link not in encoding.sources and not refused:
        want(state, encoding, announcer, now)
    if not encoding.sources and encoding.awaited is None:
        ask_next(state, encoding, now)


def ask_next(state: RelayState, encoding: EncodingState, now: float) -> bool:
    """Ask the best candidate that is not asked yet, dialling it if need be; False when there is none."""
    asked = {state.links[link_id].peer_id for link_id in encoding.sources}
    candidates = [
        neighbour
        for neighbour in state.candidates(now)
        if neighbour.peer_id not in asked and encoding.refused_until_s.get(neighbour.peer_id, 0.0) <= now
    ]
    # Those that stalled before come last: slow is better than nobody.
    candidates.sort(key=lambda neighbour: neighbour.peer_id in encoding.passed_over)
    for neighbour in candidates:
        link = state.newest_link(neighbour.peer_id)
        if link is not None:
            want(state, encoding, link, now)
            return True
        if dial(state, neighbour, now):
            encoding.awaited = neighbour.peer_id
            return True
        if _may_still_dial_us(state, encoding, neighbour, now):
            return True
    return False


def dial(state: RelayState, neighbour: Neighbour, now: float) -> bool:
    """Dial, unless it is under way already (true as well), impossible, or too soon after a failure."""
    if not neighbour.we_dial or not neighbour.address:
        return False
    dialling = state.dial_state(neighbour.peer_id)
    if dialling.dialling:
        return True
    if dialling.retry_at_s > now:
        return False
    dialling.dialling = True
    state.do(Dial(neighbour))
    return True


def _may_still_dial_us(state: RelayState, encoding: EncodingState, neighbour: Neighbour, now: float) -> bool:
    if neighbour.we_dial or not state.is_parent(neighbour.peer_id):
        return False
    fresh = state.dial_state(neighbour.peer_id).failures == 0
    return fresh and now - encoding.asked_since_s < state.settings.stall_timeout_s


def want(state: RelayState, encoding: EncodingState, link: LinkState, now: float) -> None:
    """Ask on a link, say what we hold already, and give credit in the same breath."""
    if encoding.awaited == link.peer_id:
        encoding.awaited = None
    encoding.sources[link.link] = Source(wanted_at_s=now, last_chunk_s=now)
    state.do(SendWant(link.link, encoding.key))
    if encoding.have.count:
        state.do(SendHave(link.link, encoding.key, encoding.chunk_count, encoding.have.bitmap, False))
    grant(state, link.link)


def drop_source(state: RelayState, encoding: EncodingState, link_id: LinkId, reason: str) -> None:
    """Stop asking on a link that stays open."""
    del encoding.sources[link_id]
    link = state.links.get(link_id)
    if link is not None:
        release_credit(link, encoding.key)
        state.do(SendCancel(link_id, encoding.key, reason))
        grant(state, link_id)


def release_credit(link: LinkState, key: EncodingKey) -> None:
    unused = link.granted.pop(key, 0)
    if unused:
        link.late[key] = link.late.get(key, 0) + unused


def source_cancelled(state: RelayState, event: CancelReceived, now: float) -> None:
    """The sender gave up: look elsewhere."""
    encoding = state.encodings.get(event.key)
    link = state.links.get(event.link)
    if encoding is None or link is None or event.link not in encoding.sources:
        return
    del encoding.sources[event.link]
    release_credit(link, event.key)
    # Asked again at once it would refuse again, as fast as the network allows.
    encoding.refused_until_s[link.peer_id] = now + state.settings.stall_timeout_s
    grant(state, event.link)
    seek(state, encoding, now)


def source_claims(state: RelayState, event: HaveReceived) -> None:
    """Learn what the sender on this link holds."""
    encoding = state.encodings.get(event.key)
    source = encoding.sources.get(event.link) if encoding else None
    if encoding is None or source is None:
        return
    claimed = ChunkSet.from_bitmap(encoding.chunk_count, event.bitmap) if event.chunk_count else None
    if event.complete:
        claimed = ChunkSet.full(encoding.chunk_count)
    source.claimed = claimed or ChunkSet(encoding.chunk_count)


def lose_link(state: RelayState, link_id: LinkId, now: float) -> None:
    """A link is gone: whoever depended on it is served by the next source."""
    for encoding in list(state.encodings.values()):
        if encoding.sources.pop(link_id, None) is not None:
            seek(state, encoding, now)


def refresh(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Ask every source again: it starts over and sends whatever we lack."""
    for link_id in list(encoding.sources):
        link = state.links[link_id]
        silent_since_s = encoding.sources[link_id].last_chunk_s
        claimed = encoding.sources[link_id].claimed
        want(state, encoding, link, now)
        encoding.sources[link_id].last_chunk_s = silent_since_s
        encoding.sources[link_id].claimed = claimed


def grant(state: RelayState, link_id: LinkId) -> None:
    """Return credit on a link, newest version first, in lumps so that it costs few messages."""
    link = state.links.get(link_id)
    if link is None:
        return
    most = state.settings.credit_chunks
    lump = max(1, most // 8)
    # One encoding leaves a part of the link's credit to a newer one that may come.
    share = max(1, most - most // 4)
    for encoding in state.in_flight():
        if link_id not in encoding.sources or encoding.resumable:
            continue
        granted = link.granted.get(encoding.key, 0)
        missing = encoding.chunk_count - encoding.have.count - granted
        count = min(most - link.unacknowledged, share - granted, missing)
        if count > 0 and (count >= lump or count == missing or granted == 0):
            link.granted[encoding.key] = granted + count
            if len(encoding.sources) > 1 and encoding.have.count:
                send_have(state, link_id, encoding.key)  # so that two sources do not send the same chunks
            state.do(SendCredit(link_id, encoding.key, count))


def watch(state: RelayState, encoding: EncodingState, now: float) -> None:
    """When nothing new came for too long, ask one more source; when there is none, ask all of them again."""
    _pass_over_silent(state, encoding, now)
    if not encoding.sources and encoding.awaited is None:
        ask_next(state, encoding, now)
    patience_s = state.settings.stall_timeout_s * (STARVED_PATIENCE if _starved(encoding) else 1.0)
    if now - encoding.patience_from_s < patience_s:
        return
    encoding.patience_from_s = now
    encoding.awaited = None
    if not ask_next(state, encoding, now):
        refresh(state, encoding, now)


def _starved(encoding: EncodingState) -> bool:
    """Every source answered, and passed on all that it claims."""
    claims = [source.claimed for source in encoding.sources.values()]
    return bool(claims) and all(claim is not None and encoding.have.covers(claim) for claim in claims)


def _pass_over_silent(state: RelayState, encoding: EncodingState, now: float) -> None:
    """Once a second source delivers, drop those that do not: demoted for this encoding, not banned."""
    limit_s = now - state.settings.stall_timeout_s
    if not any(source.last_chunk_s > max(limit_s, source.wanted_at_s) for source in encoding.sources.values()):
        return
    for link_id, source in list(encoding.sources.items()):
        if source.last_chunk_s <= limit_s:
            encoding.passed_over.add(state.links[link_id].peer_id)
            drop_source(state, encoding, link_id, "nothing came for too long")
