"""Follow an encoding from its announcement to the disk, or to the point at which it is abandoned.

An encoding is *waiting* for its chunk list, then *opening* in the store, *receiving* chunks, *finishing* once all of
them are verified, and *held* when it is durable. It is in flight up to *receiving*; ``RelaySettings`` bounds how many
are.
"""

from __future__ import annotations

from dataclasses import replace

from peer.links.neighbours import EncodingKey
from peer.relay.core import forwarding, origin, reports
from peer.relay.core.pulling import pull, sources
from peer.relay.core.state.actions import AbandonVersion, AnnounceHeld, BeginStore, FinishVersion, GiveUp
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import (
    EncodingKnown,
    EncodingUnwanted,
    StoreFailed,
    StoreReady,
    VersionFinished,
    VersionRestored,
    VersionsRemoved,
)
from peer.relay.core.state.relay_state import EncodingState, RelayState, StoreFailure
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import KEYFRAME_ID


def encoding_known(state: RelayState, event: EncodingKnown, now: float) -> None:
    """Start to receive an encoding, or add what the shell has learned about one."""
    encoding = state.encodings.get(event.key)
    if encoding is None:
        waiting = state.waiting_for_retry.get(event.key)
        if waiting is not None and event.holder is None:
            waiting.announced |= event.announced
            waiting.is_base |= event.is_base
            return
        state.waiting_for_retry.pop(event.key, None)  # the learner waits for an answer: its push is taken at once
        encoding = EncodingState(
            event.key,
            "waiting",
            ChunkSet(event.chunk_count),
            event.chunk_size_bytes,
            pushed=event.pushed,
            is_base=event.is_base,
            pushed_at_s=now,
            came_at_s=now,
            searched_at_s=now,
        )
        state.encodings[event.key] = encoding
        _bound(state)
        if event.key not in state.encodings:
            return
    if event.announced and not encoding.announced:
        encoding.announced = True
        encoding.announced_at_s = encoding.pushed_at_s = encoding.came_at_s = encoding.searched_at_s = now
    encoding.is_base |= event.is_base
    if event.listed:
        mark_listed(state, encoding)
    if event.holder in state.links and event.holder != encoding.holder and encoding.in_flight:
        encoding.holder = event.holder
        sources.want(state, encoding, state.links[event.holder], now)
    pull.watch(state, encoding, now)


def _bound(state: RelayState) -> None:
    # The oldest are abandoned, except a keyframe that has begun to arrive: the deltas after it build on it. Last of all
    # goes the base of adapters.
    ordered = sorted(
        state.in_flight(), key=lambda one: (not one.is_base, one.key.encoding_id != KEYFRAME_ID or not one.have.count)
    )
    for encoding in ordered[state.settings.encodings_in_flight_most :]:
        abandon(state, encoding, "too many encodings in flight")


def mark_listed(state: RelayState, encoding: EncodingState) -> None:
    """The chunk list is here and valid: open the store, and send the list on to the neighbours that need it."""
    if encoding.listed:
        return
    encoding.listed = True
    if encoding.phase == "waiting":
        encoding.phase = "opening"
        state.do(BeginStore(encoding.key))
    for link in state.links.values():
        reports.introduce(state, link, encoding)


def abandon(
    state: RelayState, encoding: EncodingState, reason: str, *, again: bool = False, in_vain: bool = False
) -> None:
    """Stop receiving an encoding; cancel what was asked of sources and what others ask of this process.

    Args:
        again: whether it is received again later, after a failure of the store.
        in_vain: no known source has it, so a newer version has to take its place.
    """
    pull.stop(state, encoding, reason)
    forwarding.discard_encoding(state, encoding.key, reason)
    del state.encodings[encoding.key]
    state.do(AbandonVersion(encoding.key, reason, again, in_vain))


def give_up_in_vain(state: RelayState, now: float) -> None:
    """Abandon encodings that no source has any more, for a newer version.

    Only a peer does: an origin gets what it lacks from the learner. No newer version can replace the base of adapters.
    """
    newest = max(state.known_versions, default=Version(-1))
    for encoding in state.in_flight() if state.settings.role == "peer" else []:
        replaceable = encoding.key.version < newest and not encoding.is_base
        if replaceable and _in_vain(state, encoding, now):
            abandon(state, encoding, "no source has it any more", in_vain=True)


def _in_vain(state: RelayState, encoding: EncodingState, now: float) -> bool:
    """Return whether a source refused it, no chunk came for long, and no source claims any missing chunk.

    If no chunk of it is here and the origin does not push it, abandoning it loses nothing: then the wait ends as soon
    as every source has refused.
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
    """Stop receiving an encoding, and do not retry one that could not be stored."""
    state.waiting_for_retry.pop(event.key, None)
    encoding = state.encodings.get(event.key)
    if encoding is not None and encoding.in_flight:
        abandon(state, encoding, event.reason)


def restored(state: RelayState, event: VersionRestored) -> None:
    """Serve an encoding that was found on disk or made here, and so was not received since this process started."""
    before = state.encodings.get(event.key)
    have = ChunkSet.full(event.chunk_count)
    held = EncodingState(event.key, "held", have, event.chunk_size_bytes, announced=True, listed=True)
    if before is not None:
        held.sources = before.sources
    state.encodings[event.key] = held
    state.made.discard(event.key)
    for link in state.links.values():
        if event.key in link.lists_due:  # asked for before the state was made and cut up again
            reports.introduce(state, link, held)
    reports.report_complete(state, held, all_neighbours=False)


def removed(state: RelayState, event: VersionsRemoved) -> None:
    """Retention removed these encodings: cancel all requests for them."""
    for key in event.keys:
        state.waiting_for_retry.pop(key, None)
        if state.encodings.pop(key, None) is not None or key in state.made:
            state.made.discard(key)
            forwarding.discard_encoding(state, key, "no longer kept")


def store_ready(state: RelayState, event: StoreReady, now: float) -> None:
    """The store is open: count the chunks that it found on disk, and ask for the rest."""
    encoding = state.encodings.get(event.key)
    found = ChunkSet.from_bitmap(encoding.chunk_count, event.bitmap) if encoding else None
    if encoding is None or encoding.phase != "opening" or found is None:
        return
    encoding.phase = "receiving"
    encoding.have.add_all(found)
    if not finish_if_complete(state, encoding):
        if found.count:
            reports.report_to_neighbours(state, encoding)
        pull.watch(state, encoding, now)
    if found.count and event.key in state.broadcasts:
        origin.issue(state, now)


def finish_if_complete(state: RelayState, encoding: EncodingState) -> bool:
    """Have the store make an encoding durable if its last chunk is verified; return whether it was."""
    if not encoding.have.complete or encoding.phase != "receiving":
        return False
    encoding.phase = "finishing"
    encoding.awaited = None
    state.do(FinishVersion(encoding.key))
    return True


def version_finished(state: RelayState, event: VersionFinished) -> None:
    """The encoding is durable and its state verified: announce that it is held here."""
    encoding = state.encodings.get(event.key)
    if encoding is None or encoding.phase != "finishing":
        return
    encoding.phase = "held"
    _stored_at_last(state, event.key)
    state.do(AnnounceHeld(event.key))
    reports.report_complete(state, encoding, all_neighbours=True)


# ---------------------------------------------------------------- failures of the store


def store_failed(state: RelayState, event: StoreFailed, now: float) -> None:
    """The store failed: abandon the encoding, record why, schedule a retry; end the process after failures for long."""
    encoding = state.encodings.get(event.key)
    if encoding is None:
        return  # for chunks that were being stored when it was abandoned
    since_s = now if state.store_failure is None else state.store_failure.since_s
    state.store_failure = StoreFailure(event.key, event.reason, since_s)
    state.retry_at_s = now + state.settings.store_retry_s
    again = encoding.holder is None  # otherwise the learner sends it again without being asked
    abandon(state, encoding, event.reason, again=again)
    if again:
        state.waiting_for_retry[event.key] = encoding
    if now - since_s >= state.settings.store_give_up_s:
        state.do(GiveUp(event.key.version, event.reason, event.fix))


def _stored_at_last(state: RelayState, key: EncodingKey) -> None:
    """The store works again: retry what failed, and show no failure unless it was of an encoding newer than this."""
    failure = state.store_failure
    if failure is not None:
        state.store_failure = replace(failure, since_s=state.now_s) if failure.key > key else None
        state.retry_at_s = state.now_s


def retry_failed(state: RelayState, now: float) -> None:
    """Receive the encodings again that could not be stored, once the retry is due."""
    if state.retry_at_s > now:
        return
    waiting, state.waiting_for_retry = state.waiting_for_retry, {}
    for key, encoding in waiting.items():
        known = EncodingKnown(
            key,
            encoding.chunk_count,
            encoding.chunk_size_bytes,
            encoding.announced,
            pushed=encoding.pushed,
            is_base=encoding.is_base,
        )
        encoding_known(state, known, now)
