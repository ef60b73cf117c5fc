"""The receiving side of the relay's core: encodings from their announcement to the disk, chunks from link to store."""

from __future__ import annotations

from dataclasses import replace

from peer.links.neighbours import EncodingKey
from peer.relay.core import pulling
from peer.relay.core.actions import (
    AbandonVersion,
    Accuse,
    AnnounceHeld,
    BeginStore,
    CloseLink,
    FinishVersion,
    GiveUp,
    Verify,
)
from peer.relay.core.chunk_set import ChunkSet
from peer.relay.core.events import (
    ChunkArrived,
    ChunkCorrupt,
    ChunkListReceived,
    ChunkVerified,
    EncodingKnown,
    EncodingUnwanted,
    StoreFailed,
    StoreReady,
    VersionFinished,
    VersionRestored,
    VersionsRemoved,
)
from peer.relay.core.forwarding import (
    drop_link,
    forget,
    forward,
    introduce,
    tell_complete,
    tell_neighbours,
    tell_wanting,
)
from peer.relay.core.origin import give_again
from peer.relay.core.state import EncodingState, LinkState, RelayState, StoreFailure
from rollcast.wire.ids import ChunkIndex, Version
from rollcast.wire.links.frames import NO_STRIPE
from rollcast.wire.versions.records import KEYFRAME_ID

# ---------------------------------------------------------------- encodings


def encoding_known(state: RelayState, event: EncodingKnown, now: float) -> None:
    """Start to receive an encoding, or learn more of one."""
    encoding = state.encodings.get(event.key)
    if encoding is None:
        if event.key in state.waiting_for_retry:
            return
        encoding = EncodingState(
            event.key,
            "waiting",
            ChunkSet(event.chunk_count),
            event.chunk_size_bytes,
            pushed=event.pushed,
            pushed_at_s=now,
            came_at_s=now,
            looked_at_s=now,
        )
        state.encodings[event.key] = encoding
        _bound(state)
        if event.key not in state.encodings:
            return
    if event.announced and not encoding.announced:
        encoding.announced = True
        encoding.announced_at_s = encoding.pushed_at_s = encoding.came_at_s = encoding.looked_at_s = now
    if event.listed:
        _listed(state, encoding)
    if event.holder in state.links and event.holder != encoding.holder and encoding.in_flight:
        encoding.holder = event.holder
        pulling.want(state, encoding, state.links[event.holder], now)
    pulling.watch(state, encoding, now)


def _bound(state: RelayState) -> None:
    # Those that go are the oldest, but not a keyframe of which something is here: the deltas after it build on it.
    ordered = sorted(state.in_flight(), key=lambda one: one.key.encoding_id != KEYFRAME_ID or not one.have.count)
    for encoding in ordered[state.settings.encodings_in_flight_most :]:
        abandon(state, encoding, "too many encodings in flight")


def _listed(state: RelayState, encoding: EncodingState) -> None:
    if encoding.listed:
        return
    encoding.listed = True
    if encoding.phase == "waiting":
        encoding.phase = "opening"
        state.do(BeginStore(encoding.key))
    for link in state.links.values():
        introduce(state, link, encoding)


def abandon(
    state: RelayState, encoding: EncodingState, reason: str, *, again: bool = False, in_vain: bool = False
) -> None:
    """Stop receiving an encoding and tell both sides."""
    pulling.stop(state, encoding, reason)
    forget(state, encoding.key, reason)
    del state.encodings[encoding.key]
    state.do(AbandonVersion(encoding.key, reason, again, in_vain))


def give_up_in_vain(state: RelayState, now: float) -> None:
    """Give up what nobody has any more, for a newer version. An origin has what it lacks from the learner."""
    newest = max(state.heard, default=Version(-1))
    for encoding in state.in_flight() if state.settings.role == "peer" else []:
        if encoding.key.version < newest and _in_vain(state, encoding, now):
            abandon(state, encoding, "nobody has it any more", in_vain=True)


def _in_vain(state: RelayState, encoding: EncodingState, now: float) -> bool:
    """Whether somebody said that it is gone, nothing came for long, and nobody claims any of the rest.

    Where nothing of it is here and nobody pushes it, nothing is lost: then the wait is for others who lack it, and
    ends once all have refused.
    """
    patience_s = state.settings.in_vain_s
    if not (encoding.pushed or encoding.have.count):
        others = bool(encoding.sources) or encoding.awaited is not None
        patience_s = state.settings.stall_timeout_s if others else 0.0
    if not encoding.refused_until_s or now - encoding.came_at_s < patience_s:
        return False
    missing = encoding.have.missing_below(encoding.chunk_count)
    return not any(missing & (source.claimed or 0) for source in encoding.sources.values())


def unwanted(state: RelayState, event: EncodingUnwanted) -> None:
    """Stop receiving an encoding, or trying to."""
    state.waiting_for_retry.pop(event.key, None)
    encoding = state.encodings.get(event.key)
    if encoding is not None and encoding.in_flight:
        abandon(state, encoding, event.reason)


def restored(state: RelayState, event: VersionRestored) -> None:
    """An encoding is held that nobody sent us in this life of the process."""
    before = state.encodings.get(event.key)
    have = ChunkSet.full(event.chunk_count)
    held = EncodingState(event.key, "held", have, event.chunk_size_bytes, announced=True, listed=True)
    if before is not None:
        held.sources = before.sources
    state.encodings[event.key] = held
    state.made.discard(event.key)
    for link in state.links.values():
        if event.key in link.lists_due:  # asked for before the state was made and cut up again
            introduce(state, link, held)
    tell_complete(state, held, all_neighbours=False)


def removed(state: RelayState, event: VersionsRemoved) -> None:
    """Retention removed these: nobody can have them from us any more."""
    for key in event.keys:
        state.waiting_for_retry.pop(key, None)
        if state.encodings.pop(key, None) is not None or key in state.made:
            state.made.discard(key)
            forget(state, key, "no longer kept")


def store_ready(state: RelayState, event: StoreReady, now: float) -> None:
    """The store is open: what it found on disk counts."""
    encoding = state.encodings.get(event.key)
    found = ChunkSet.from_bitmap(encoding.chunk_count, event.bitmap) if encoding else None
    if encoding is None or encoding.phase != "opening" or found is None:
        return
    encoding.phase = "receiving"
    encoding.have.add_all(found)
    if not _finish_if_complete(state, encoding):
        if found.count:
            tell_neighbours(state, encoding)
        pulling.watch(state, encoding, now)


def _finish_if_complete(state: RelayState, encoding: EncodingState) -> bool:
    if not encoding.have.complete or encoding.phase != "receiving":
        return False
    encoding.phase = "finishing"
    encoding.awaited = None
    state.do(FinishVersion(encoding.key))
    return True


def version_finished(state: RelayState, event: VersionFinished) -> None:
    """Durable and verified: everybody may know."""
    encoding = state.encodings.get(event.key)
    if encoding is None or encoding.phase != "finishing":
        return
    encoding.phase = "held"
    _stored_at_last(state, event.key)
    state.do(AnnounceHeld(event.key))
    tell_complete(state, encoding, all_neighbours=True)


# ---------------------------------------------------------------- failures of the store


def store_failed(state: RelayState, event: StoreFailed, now: float) -> None:
    """The store refused the encoding: give it up, remember why, and try again later a few times."""
    encoding = state.encodings.get(event.key)
    if encoding is None:
        return  # chunks that were under way when it was given up
    in_a_row = 1 if state.store_failure is None else state.store_failure.in_a_row + 1
    retry_at_s = now + state.settings.store_retry_s
    state.store_failure = StoreFailure(event.key, event.reason, in_a_row, retry_at_s)
    again = encoding.holder is None  # the learner sends it again by itself
    abandon(state, encoding, event.reason, again=again)
    if again:
        state.waiting_for_retry[event.key] = encoding
    if in_a_row >= state.settings.store_failures_most:
        state.do(GiveUp(event.key.version, event.reason, event.fix))


def _stored_at_last(state: RelayState, key: EncodingKey) -> None:
    """The store works again; a newer version that it refused is still tried again."""
    failure = state.store_failure
    if failure is not None:
        state.store_failure = replace(failure, in_a_row=0) if failure.key > key else None


def retry_failed(state: RelayState, now: float) -> None:
    """Receive encodings again that could not be stored."""
    failure = state.store_failure
    if failure is None or failure.retry_at_s > now:
        return
    waiting, state.waiting_for_retry = state.waiting_for_retry, {}
    for key, encoding in waiting.items():
        known = EncodingKnown(
            key, encoding.chunk_count, encoding.chunk_size_bytes, encoding.announced, pushed=encoding.pushed
        )
        encoding_known(state, known, now)


# ---------------------------------------------------------------- chunks


def chunk_list_received(state: RelayState, event: ChunkListReceived, now: float) -> None:
    """The list opens the store; a wrong one is a lie of the sender, who verified it if it is honest."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None:
        return
    if not event.valid:
        punish(state, link, event.key, ChunkIndex(0), "chunk list does not match its signed hash", now)
    else:
        _listed(state, encoding)


def chunk_arrived(state: RelayState, event: ChunkArrived, now: float) -> None:
    """Decide whether the bytes are worth verifying; whatever comes is passed on if we are to."""
    link = state.links.get(event.link)
    if link is None:
        return
    encoding = state.encodings.get(event.key)
    if encoding is None or not encoding.listed:
        _useless(state, link, now)
    elif event.index >= encoding.chunk_count:
        _close(state, link, "a chunk index is out of range", now)
    elif event.index in encoding.have:
        state.counters.chunks_duplicate += 1
        _count(state, link, event.size_bytes)
        _useless(state, link, now)
        _arrived(state, link, encoding, event, now)
    else:
        state.do(Verify(event.link, event.key, event.index, event.stripe))


def _arrived(
    state: RelayState, link: LinkState, encoding: EncodingState, event: ChunkArrived | ChunkVerified, now: float
) -> None:
    """A good chunk: the other end has it, and a stripe's goes on."""
    state.theirs(link, encoding).add(event.index)
    if event.stripe != NO_STRIPE:
        pulling.note_arrival(encoding, event.index, now)
        forward(state, encoding, event.index, event.stripe, link)


def chunk_verified(state: RelayState, event: ChunkVerified, now: float) -> None:
    """Verified bytes: count them, pass them on."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None or not encoding.have.add(event.index):
        return
    link.useful += 1
    _count(state, link, event.size_bytes)
    encoding.came_at_s = encoding.looked_at_s = now
    _arrived(state, link, encoding, event, now)
    if encoding.pulling:
        pulling.pulled(state, encoding, event.link, event.index, now)
    if encoding.ending:
        tell_wanting(state, now)
    _finish_if_complete(state, encoding)


def _count(state: RelayState, link: LinkState, size_bytes: int) -> None:
    match link.role:
        case "origin":
            state.counters.chunk_bytes_from_origin += size_bytes
        case "learner":
            state.counters.chunk_bytes_from_learner += size_bytes
        case "mirror":
            state.counters.chunk_bytes_from_mirrors += size_bytes
        case _:
            state.counters.chunk_bytes_from_peers += size_bytes


def _useless(state: RelayState, link: LinkState, now: float) -> None:
    link.useless += 1
    if link.useless > state.settings.useless_chunks_most + link.useful:
        _close(state, link, "too many chunks that were of no use", now)


def chunk_corrupt(state: RelayState, event: ChunkCorrupt, now: float) -> None:
    """Whoever sent it did not verify it, or means harm: close, accuse, fetch it elsewhere."""
    state.counters.chunks_rejected += 1
    link = state.links.get(event.link)
    if link is not None:
        punish(state, link, event.key, event.index, "chunk does not match its signed hash", now)


def punish(state: RelayState, link: LinkState, key: EncodingKey, index: ChunkIndex, why: str, now: float) -> None:
    """Accuse the peer, close its links and leave it alone for a while."""
    state.do(Accuse(link.peer_id, key.version, index, why))
    state.penalised_until_s[link.peer_id] = now + state.settings.penalty_s
    for other in [other for other in state.links.values() if other.peer_id == link.peer_id]:
        _close(state, other, why, now)


def _close(state: RelayState, link: LinkState, reason: str, now: float) -> None:
    state.do(CloseLink(link.link, reason))
    dialling = state.dial_state(link.peer_id)
    dialling.failures += 1
    dialling.retry_at_s = now + state.settings.redial_most_s
    forget_link(state, link, now)


def forget_link(state: RelayState, link: LinkState, now: float) -> None:
    """A link is gone: nobody waits for what was on it."""
    del state.links[link.link]
    older = [other for other in state.links.values() if other.peer_id == link.peer_id]
    if older:
        state.link_to[link.peer_id] = max(older, key=lambda other: other.link)
    else:
        state.link_to.pop(link.peer_id, None)
    drop_link(state, link)
    pulling.lose_link(state, link.link, now)
    if link.owned:
        give_again(state, link, now)
