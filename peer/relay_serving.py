"""The sending side of the relay's core: who asked for what, and which chunk goes to whom next."""

from __future__ import annotations

from peer.chunk_set import ChunkSet
from peer.relay_actions import SendCancel, SendChunk, SendChunkList, SendHave
from peer.relay_events import (
    CancelReceived,
    CreditReceived,
    EncodingKey,
    HaveReceived,
    HeldReceived,
    LinkId,
    WantReceived,
)
from peer.relay_state import EncodingState, LinkState, RelayState, Serving
from rollcast.wire.ids import ChunkIndex

_LISTED = ("receiving", "finishing", "held")  # phases in which the store holds the chunk list


def want_received(state: RelayState, event: WantReceived) -> None:
    """Start, or start again, to push an encoding; unknown ones are remembered until they are announced to us."""
    link = state.links.get(event.link)
    if link is None:
        return
    encoding = state.encodings.get(event.key)
    if encoding is None and event.key.version <= state.newest_version():
        state.do(SendCancel(link.link, event.key, "not held here"))
        return
    before = link.serving.get(event.key, Serving(event.key))
    link.serving[event.key] = Serving(event.key, before.credit, theirs=before.theirs)
    while len(link.serving) > state.settings.wants_per_link_most:
        oldest = min(link.serving)
        del link.serving[oldest]
        state.do(SendCancel(link.link, oldest, "too many encodings asked for"))
    if event.key not in link.serving:
        return
    send_have(state, link.link, event.key)
    introduce(state, link, event.key)
    push(state, link)


def send_have(state: RelayState, link: LinkId, key: EncodingKey) -> None:
    """Say what we hold: an empty answer at least shows that we are alive."""
    encoding = state.encodings.get(key)
    if encoding is None:
        state.do(SendHave(link, key, 0, b"", False))
    else:
        complete = encoding.phase == "held"
        state.do(SendHave(link, key, encoding.chunk_count, encoding.have.bitmap, complete))


def introduce(state: RelayState, link: LinkState, key: EncodingKey) -> None:
    """Send the chunk list once, before the first chunk."""
    encoding = state.encodings.get(key)
    serving = link.serving.get(key)
    if encoding is not None and serving is not None and encoding.phase in _LISTED and not serving.list_sent:
        serving.list_sent = True
        state.do(SendChunkList(link.link, key))


def have_received(state: RelayState, event: HaveReceived) -> None:
    """Learn what the receiver on this link does not need."""
    link = state.links.get(event.link)
    serving = link.serving.get(event.key) if link else None
    encoding = state.encodings.get(event.key)
    if link is None or serving is None or encoding is None or event.chunk_count != encoding.chunk_count:
        return
    if event.complete:
        del link.serving[event.key]
        return
    theirs = ChunkSet.from_bitmap(event.chunk_count, event.bitmap)
    if theirs is not None:
        serving.theirs = theirs


def credit_received(state: RelayState, event: CreditReceived) -> None:
    """The receiver has room for more chunks."""
    link = state.links.get(event.link)
    serving = link.serving.get(event.key) if link else None
    if link is None or serving is None:
        return
    serving.credit = min(serving.credit + event.chunks, state.settings.credit_kept_most)
    push(state, link)


def stop_serving(state: RelayState, event: CancelReceived | HeldReceived) -> None:
    """The receiver wants no more of an encoding, or of any encoding of a version that it holds."""
    link = state.links.get(event.link)
    if link is None:
        return
    match event:
        case CancelReceived(key=key):
            link.serving.pop(key, None)
        case HeldReceived(version=version):
            for key in [key for key in link.serving if key.version == version]:
                del link.serving[key]


def chunk_sent(state: RelayState, link_id: LinkId) -> None:
    """The transport took a chunk."""
    link = state.links.get(link_id)
    if link is not None and link.queued > 0:
        link.queued -= 1
        push(state, link)


def push_to_all(state: RelayState, key: EncodingKey) -> None:
    """A chunk of this encoding was verified: pass it on while the rest is still on its way to us."""
    for link in list(state.links.values()):
        if key in link.serving:
            push(state, link)


def push(state: RelayState, link: LinkState) -> None:
    """Fill the link's transport with chunks that its receiver lacks, newest version first."""
    while link.queued < state.settings.outbox_chunks:
        chosen = _next_chunk(state, link)
        if chosen is None:
            return
        serving, index = chosen
        serving.credit -= 1
        link.queued += 1
        state.do(SendChunk(link.link, serving.key, ChunkIndex(index)))


def _next_chunk(state: RelayState, link: LinkState) -> tuple[Serving, int] | None:
    for key in sorted(link.serving, reverse=True):
        serving = link.serving[key]
        encoding = state.encodings.get(key)
        if encoding is None or serving.credit <= 0 or not serving.list_sent:
            continue
        index = _advance(serving, encoding)
        if index is not None:
            return serving, index
    return None


def _advance(serving: Serving, encoding: EncodingState) -> int | None:
    """Move the cursor to the next chunk that we hold and the receiver lacks, and past it."""
    while serving.cursor < len(encoding.order):
        index = encoding.order[serving.cursor]
        serving.cursor += 1
        if serving.theirs is None or index not in serving.theirs:
            return index
    return None


def forget(state: RelayState, key: EncodingKey, reason: str) -> None:
    """We will never complete this encoding, or hold it no more: receivers must look elsewhere."""
    for link in state.links.values():
        if link.serving.pop(key, None) is not None:
            state.do(SendCancel(link.link, key, reason))


def tell_complete(state: RelayState, key: EncodingKey) -> None:
    """Receivers learn that we hold all of it."""
    for link in state.links.values():
        if key in link.serving:
            send_have(state, link.link, key)
