"""The receiving side of the relay's core: versions from their announcement to the disk, chunks from link to store."""

from __future__ import annotations

from dataclasses import replace

from peer.chunk_set import ChunkSet
from peer.relay_actions import (
    AbandonVersion,
    Accuse,
    AnnounceHeld,
    BeginStore,
    CloseLink,
    FinishVersion,
    GiveUp,
    SendHeld,
    VerifyAndStore,
)
from peer.relay_events import (
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkStored,
    EncodingKey,
    StoreFailed,
    StoreReady,
    VersionFinished,
    VersionKnown,
)
from peer.relay_serving import forget, introduce, push_to_all, send_have, tell_complete
from peer.relay_sources import drop_source, grant, lose_link, refresh, release_credit, seek
from peer.relay_state import EncodingState, LinkState, RelayState, StoreFailure
from rollcast.wire.ids import ChunkIndex

# ---------------------------------------------------------------- versions


def version_known(state: RelayState, event: VersionKnown, now: float) -> None:
    """Start to receive an announced encoding, unless it is held, failed, or older than what we know."""
    known = state.encodings.get(event.key)
    if known is not None:
        _announced_again(state, known, event, now)
        return
    if event.announced_on is None and (
        _waits_for_retry(state, event.key) or event.key.version < state.newest_version()
    ):
        return
    encoding = EncodingState(
        event.key,
        "waiting",
        ChunkSet(event.chunk_count),
        resumable=event.resumable,
        announced_on=event.announced_on,
        asked_since_s=now,
        patience_from_s=now,
    )
    state.encodings[event.key] = encoding
    _supersede(state, event.key)
    if event.key in state.encodings:
        seek(state, encoding, now)


def _waits_for_retry(state: RelayState, key: EncodingKey) -> bool:
    failure = state.store_failure
    return failure is not None and failure.key == key and failure.retry_at_s is not None


def _announced_again(state: RelayState, encoding: EncodingState, event: VersionKnown, now: float) -> None:
    if event.announced_on is None:
        return
    if encoding.phase == "held":
        state.do(SendHeld(event.announced_on, encoding.key.version))
    elif encoding.in_flight:
        encoding.announced_on = event.announced_on
        seek(state, encoding, now)


def _supersede(state: RelayState, newest: EncodingKey) -> None:
    """Give up older encodings of which little arrived, and the oldest beyond the bound."""
    if state.settings.role == "peer":
        for encoding in state.in_flight():
            if encoding.key.version < newest.version and encoding.have.count * 2 < encoding.chunk_count:
                abandon(state, encoding, "superseded by a newer version")
    for encoding in state.in_flight()[state.settings.versions_in_flight_most :]:
        abandon(state, encoding, "too many versions in flight")


def abandon(state: RelayState, encoding: EncodingState, reason: str) -> None:
    """Stop receiving an encoding and tell both sides."""
    for link_id in list(encoding.sources):
        drop_source(state, encoding, link_id, reason)
    forget(state, encoding.key, reason)
    del state.encodings[encoding.key]
    state.do(AbandonVersion(encoding.key, reason))


def store_ready(state: RelayState, event: StoreReady) -> None:
    """The store is open: what it found on disk counts, and the list can be passed on."""
    encoding = state.encodings.get(event.key)
    found = ChunkSet.from_bitmap(encoding.chunk_count, event.bitmap) if encoding else None
    if encoding is None or encoding.phase != "opening" or found is None:
        return
    encoding.phase = "receiving"
    encoding.resumable = False
    encoding.have = found
    encoding.order = list(found)
    for link in state.links.values():
        introduce(state, link, event.key)
    push_to_all(state, event.key)
    if _finish_if_complete(state, encoding):
        return
    for link_id in list(encoding.sources):
        if found.count:
            send_have(state, link_id, event.key)
        grant(state, link_id)


def _finish_if_complete(state: RelayState, encoding: EncodingState) -> bool:
    if not encoding.have.complete or encoding.phase != "receiving":
        return False
    encoding.phase = "finishing"
    state.do(FinishVersion(encoding.key))
    return True


def version_finished(state: RelayState, event: VersionFinished) -> None:
    """Durable and verified: acknowledge it to whom it came from, and to whom we serve it."""
    encoding = state.encodings.get(event.key)
    if encoding is None or encoding.phase != "finishing":
        return
    encoding.phase = "held"
    _stored_at_last(state, event.key)
    for link_id in list(encoding.sources):
        release_credit(state.links[link_id], event.key)
        state.do(SendHeld(link_id, event.key.version))
    encoding.sources.clear()
    state.do(AnnounceHeld(event.key))
    tell_complete(state, event.key)
    for other in state.in_flight():
        for link_id in list(other.sources):
            grant(state, link_id)


def store_failed(state: RelayState, event: StoreFailed, now: float) -> None:
    """The store refused the encoding: give it up, remember why, and try again later a few times."""
    link = state.links.get(event.link) if event.link is not None else None
    if link is not None:
        link.verifying -= 1
    encoding = state.encodings.get(event.key)
    if encoding is None:
        return  # chunks that were under way when it was given up
    in_a_row = 1 if state.store_failure is None else state.store_failure.in_a_row + 1
    retry_at_s = now + state.settings.store_retry_s if encoding.announced_on is None else None
    state.store_failure = StoreFailure(event.key, encoding.chunk_count, event.reason, in_a_row, retry_at_s)
    abandon(state, encoding, event.reason)
    if in_a_row >= state.settings.store_failures_most:
        state.do(GiveUp(event.key.version, event.reason, event.fix))


def _stored_at_last(state: RelayState, key: EncodingKey) -> None:
    """The store works again; a newer version that it refused is still tried again."""
    failure = state.store_failure
    if failure is not None:
        state.store_failure = replace(failure, in_a_row=0) if failure.key > key else None


def retry_failed(state: RelayState, now: float) -> None:
    """Receive a version again that could not be stored, unless a newer one is known."""
    failure = state.store_failure
    if failure is not None and failure.retry_at_s is not None and failure.retry_at_s <= now:
        state.store_failure = replace(failure, retry_at_s=None)
        version_known(state, VersionKnown(failure.key, failure.chunk_count), now)


# ---------------------------------------------------------------- chunks and credit


def chunk_list_received(state: RelayState, event: ChunkListReceived, now: float) -> None:
    """The list opens the store; a wrong one is a lie of the sender, who verified it if it is honest."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None:
        return
    if not event.valid:
        punish(state, link, event.key, ChunkIndex(0), "chunk list does not match its signed hash", now)
    elif encoding.phase == "waiting":
        encoding.phase = "opening"
        encoding.patience_from_s = now
        state.do(BeginStore(event.key))


def chunk_arrived(state: RelayState, event: ChunkArrived, now: float) -> None:
    """Decide whether the bytes are worth verifying."""
    link = state.links.get(event.link)
    if link is None:
        return
    encoding = state.encodings.get(event.key)
    if not _use_credit(link, event.key):
        _close(state, link, "a chunk was pushed without credit", now)
    elif encoding is None or encoding.phase in ("finishing", "held"):
        return  # late
    elif encoding.phase == "waiting":
        _close(state, link, "a chunk was pushed before its chunk list", now)
    elif event.index >= encoding.chunk_count:
        _close(state, link, "a chunk index is out of range", now)
    elif event.index in encoding.have or link.unacknowledged >= state.settings.credit_chunks:
        # Held already, or late on a link whose credit was given out anew: another source sends it.
        _count(state, link, event.size_bytes)
        grant(state, event.link)
    else:
        link.verifying += 1
        state.do(VerifyAndStore(event.link, event.key, event.index))


def _use_credit(link: LinkState, key: EncodingKey) -> bool:
    for purse in (link.granted, link.late):
        if key in purse:
            purse[key] -= 1
            if not purse[key]:
                del purse[key]
            return True
    return False


def chunk_stored(state: RelayState, event: ChunkStored, now: float) -> None:
    """Verified bytes: count them, return credit, pass them on."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is not None:
        link.verifying -= 1
        _count(state, link, event.size_bytes)
    if encoding is not None and encoding.phase == "receiving" and encoding.have.add(event.index):
        encoding.order.append(event.index)
        encoding.patience_from_s = now
        if event.link in encoding.sources:
            encoding.sources[event.link].last_chunk_s = now
        push_to_all(state, event.key)
        _finish_if_complete(state, encoding)
    grant(state, event.link)


def _count(state: RelayState, link: LinkState, size_bytes: int) -> None:
    match link.role:
        case "origin":
            state.counters.chunk_bytes_from_origin += size_bytes
        case "learner":
            state.counters.chunk_bytes_from_learner += size_bytes
        case _:
            state.counters.chunk_bytes_from_peers += size_bytes


def chunk_corrupt(state: RelayState, event: ChunkCorrupt, now: float) -> None:
    """Whoever sent it did not verify it, or means harm: close, accuse, fetch it elsewhere."""
    state.counters.chunks_rejected += 1
    link = state.links.get(event.link)
    if link is not None:
        link.verifying -= 1
        punish(state, link, event.key, event.index, "chunk does not match its signed hash", now)
    encoding = state.encodings.get(event.key)
    if encoding is not None and encoding.in_flight:
        refresh(state, encoding, now)


def punish(state: RelayState, link: LinkState, key: EncodingKey, index: ChunkIndex, why: str, now: float) -> None:
    """Accuse the peer, close its links and leave it alone for a while."""
    state.do(Accuse(link.peer_id, key.version, index, why))
    state.penalised_until_s[link.peer_id] = now + state.settings.penalty_s
    for other in [other for other in state.links.values() if other.peer_id == link.peer_id]:
        _close(state, other, why, now)


def _close(state: RelayState, link: LinkState, reason: str, now: float) -> None:
    state.do(CloseLink(link.link, reason))
    del state.links[link.link]
    dialling = state.dial_state(link.peer_id)
    dialling.failures += 1
    dialling.retry_at_s = now + state.settings.redial_most_s
    lose_link(state, link.link, now)
