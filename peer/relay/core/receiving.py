"""Decide what a chunk causes, from its arrival to its copies.

The functions stand in the order of a chunk's way. The chunk list names the hashes to expect; ``chunk_arrived`` decides
whether the bytes are worth verifying; the shell verifies them and answers with ``ChunkVerified`` or ``ChunkCorrupt``. A
verified chunk is counted, forwarded to the stripe's children, and removed from all requests; then the next chunks are
requested, and the last one completes the encoding.
"""

from __future__ import annotations

from peer.relay.core import encodings, forwarding, link_loss, origin, reports
from peer.relay.core.pulling import late, requests
from peer.relay.core.state.actions import Verify
from peer.relay.core.state.events import ChunkArrived, ChunkCorrupt, ChunkListReceived, ChunkVerified
from peer.relay.core.state.relay_state import EncodingState, LinkState, RelayState
from rollcast.wire.ids import ChunkIndex
from rollcast.wire.links.frames import NO_STRIPE


def chunk_list_received(state: RelayState, event: ChunkListReceived, now: float) -> None:
    """Open the store with a valid chunk list; penalise the sender of a wrong one, which an honest peer has verified."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None:
        return
    if not event.valid:
        link_loss.punish(state, link, event.key, ChunkIndex(0), "chunk list does not match its signed hash", now)
    else:
        encodings.mark_listed(state, encoding)


def chunk_arrived(state: RelayState, event: ChunkArrived, now: float) -> None:
    """Have a chunk verified if it is new. One that is here already is forwarded without: its stripe still needs it."""
    link = state.links.get(event.link)
    if link is None:
        return
    encoding = state.encodings.get(event.key)
    if encoding is None or not encoding.listed:
        _useless(state, link, now)
    elif event.index >= encoding.chunk_count:
        link_loss.close_link(state, link, "a chunk index is out of range", now)
    elif event.index in encoding.have:
        state.counters.chunks_duplicate += 1
        _count(state, link, event.size_bytes)
        _useless(state, link, now)
        _pass_on(state, link, encoding, event, now)
    else:
        state.do(Verify(event.link, event.key, event.index, event.stripe))


def chunk_verified(state: RelayState, event: ChunkVerified, now: float) -> None:
    """Count a new chunk, forward or broadcast it, request further ones, and finish the encoding if it was the last."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None or not encoding.have.add(event.index):
        return
    link.useful += 1
    _count(state, link, event.size_bytes)
    encoding.came_at_s = encoding.searched_at_s = now
    _pass_on(state, link, encoding, event, now)
    if event.stripe == NO_STRIPE:
        reports.got_elsewhere(state, encoding, event.index, event.link)
    if encoding.pulling:
        requests.pulled(state, encoding, event.link, event.index, now)
    if encoding.ending:
        reports.report_to_wanting(state, now)
    encodings.finish_if_complete(state, encoding)
    if event.key in state.broadcasts:
        origin.issue(state, now)


def chunk_corrupt(state: RelayState, event: ChunkCorrupt, now: float) -> None:
    """Penalise the sender, which did not verify the chunk or is hostile; the chunk is then asked of other sources."""
    state.counters.chunks_rejected += 1
    link = state.links.get(event.link)
    if link is not None:
        why = "chunk does not match its signed hash"
        link_loss.punish(state, link, event.key, event.index, why, now, event.chunk_hash)


def _pass_on(
    state: RelayState, link: LinkState, encoding: EncodingState, event: ChunkArrived | ChunkVerified, now: float
) -> None:
    """Note that the sender has the chunk, and forward it if it came on a stripe and not as an answer."""
    state.theirs(link, encoding).add(event.index)
    if event.stripe != NO_STRIPE:
        late.note_arrival(encoding, event.index, now)
        forwarding.forward(state, encoding, event.index, event.stripe, link)


def _count(state: RelayState, link: LinkState, size_bytes: int) -> None:
    match link.role:
        case "origin":
            state.counters.chunk_bytes_from_origin += size_bytes
        case "learner":
            state.counters.chunk_bytes_from_learner += size_bytes
        case "mirror" | "disk":
            state.counters.chunk_bytes_from_mirrors += size_bytes
        case _:
            state.counters.chunk_bytes_from_peers += size_bytes


def _useless(state: RelayState, link: LinkState, now: float) -> None:
    """Count a chunk that was not needed. A link that brings far more of these than useful ones only costs downlink."""
    link.useless += 1
    if link.useless > state.settings.useless_chunks_most + link.useful:
        link_loss.close_link(state, link, "too many chunks that were not needed", now)
