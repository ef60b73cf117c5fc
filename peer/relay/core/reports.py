"""Report to the other ends of links what is held here, and note what they hold: chunks, and lists of chunks."""

from __future__ import annotations

from peer.relay.core.state.actions import SendAnnouncement, SendChunkList, SendGot, SendHave
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import GotReceived, HaveReceived, LinkId
from peer.relay.core.state.relay_state import EncodingState, LinkState, RelayState
from rollcast.wire.limits import CREDIT_CHUNKS_MAX

# Reports of what is held that are sent for each chunk that comes, to all that want them together; fewer where chunks
# are smaller than this, so that reports take no larger share of a slow uplink.
_REPORTS_PER_CHUNK = 2.0
_REPORTED_CHUNK_BYTES = 32 << 10
# A broadcast that gave out no chunk for this long is stuck.
_GIVES_WITHIN_S = 1.0
# Newest encodings whose announcements and chunk lists a new link is sent.
_INTRODUCED_MOST = 2


def note_theirs(state: RelayState, event: HaveReceived) -> None:
    """Note which chunks the other end holds and so need not be sent."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None or event.chunk_count != encoding.chunk_count:
        return
    if event.complete:
        link.theirs[event.key] = ChunkSet.full(event.chunk_count)
        link.wants_no_more(event.key)
        return
    theirs = ChunkSet.from_bitmap(event.chunk_count, event.bitmap)
    if theirs is not None:
        theirs.add_all(state.theirs(link, encoding))
        link.theirs[event.key] = theirs


def report(state: RelayState, link: LinkState, encoding: EncodingState) -> None:
    """Send what is held of an encoding and may be requested."""
    offered = _offered(state, encoding)
    if encoding.key in link.wants:
        link.wants[encoding.key] = offered
    complete = encoding.phase == "held" and offered == encoding.chunk_count
    bitmap = b"" if complete or offered < encoding.have.count else encoding.have.bitmap
    state.do(SendHave(link.link, encoding.key, encoding.chunk_count, bitmap, complete))


def _offered(state: RelayState, encoding: EncodingState) -> int:
    """Return how many chunks of an encoding may be requested here: all that are held, or none.

    An origin offers none while it gives them out: each peer gets them soon from others, and where the origin's uplink
    is the limit, every other peer would wait for what is sent to one of them twice. An origin that does not get on
    offers them all the same.
    """
    broadcast = state.broadcasts.get(encoding.key)
    giving = broadcast is not None and state.now_s - broadcast.given_at_s < _GIVES_WITHIN_S
    return 0 if giving else encoding.have.count


def report_to_wanting(state: RelayState, now: float) -> None:
    """Report new chunks to the peers that want them, each as often as costs little."""
    wanting = sum(bool(link.wants) for link in state.links.values())
    for link in state.links.values():
        for key, reported in link.wants.items():
            encoding = state.encodings.get(key)
            if encoding is None or _offered(state, encoding) == reported:
                continue
            if now - link.reported_at_s >= _report_every_s(state, encoding, wanting, now):
                link.reported_at_s = now
                report(state, link, encoding)


def _report_every_s(state: RelayState, encoding: EncodingState, wanting: int, now: float) -> float:
    """Return the seconds between two reports on a link: ``have_interval_s``, or longer where chunks take long.

    Each report costs both ends as much processor time as a chunk, and a slow uplink the place of chunks. Near the end
    they come more often, in the same proportion as the least intervals.

    Args:
        wanting: links whose other ends want reports.
    """
    settings = state.settings
    least_s = settings.have_interval_s_at_end if encoding.ending else settings.have_interval_s
    reports_per_chunk = _REPORTS_PER_CHUNK * min(1.0, encoding.chunk_size_bytes / _REPORTED_CHUNK_BYTES)
    every_s = wanting * encoding.pace_s(now) / reports_per_chunk if encoding.in_flight else 0.0
    return max(least_s, every_s * least_s / settings.have_interval_s)


def got_elsewhere(state: RelayState, encoding: EncodingState, index: int, sender: LinkId) -> None:
    """Note a chunk that came on request: the parents from which it may still come by push learn it at the next tick."""
    if encoding.frontier < 0:
        return  # nothing of it is pushed here
    for peer_id in state.plan.parents:
        link = state.link_to.get(peer_id)
        if link is not None and link.link != sender:
            link.got.setdefault(encoding.key, []).append(index)


def report_got(state: RelayState) -> None:
    """Report the chunks that came another way to the links from which they were expected."""
    for link in state.links.values():
        for key, indices in link.got.items():
            for first in range(0, len(indices), CREDIT_CHUNKS_MAX):
                state.do(SendGot(link.link, key, tuple(indices[first : first + CREDIT_CHUNKS_MAX])))
        link.got.clear()


def got_received(state: RelayState, event: GotReceived) -> None:
    """Note chunks that the other end got from elsewhere, so that copies that wait for it are not sent."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None:
        return
    theirs = state.theirs(link, encoding)
    for index in event.indices:
        if 0 <= index < encoding.chunk_count:
            theirs.add(index)


def report_complete(state: RelayState, encoding: EncodingState, *, all_neighbours: bool) -> None:
    """Report a complete encoding, so that it is no longer sent here and can be requested.

    Args:
        all_neighbours: report it to every neighbour of the plan, and not only to those that want it or were asked.
    """
    for link in state.links.values():
        is_neighbour = all_neighbours and link.peer_id in state.neighbours
        if encoding.key in link.wants or link.link in encoding.sources or is_neighbour:
            report(state, link, encoding)
    encoding.sources.clear()


def report_to_neighbours(state: RelayState, encoding: EncodingState) -> None:
    """Report to all neighbours what was found on disk after a restart, so that they do not send it again."""
    for peer_id in state.neighbours:
        link = state.link_to.get(peer_id)
        if link is not None:
            report(state, link, encoding)


def introduce(state: RelayState, link: LinkState, encoding: EncodingState) -> None:
    """Send the chunk list once to a link that asked for it, and to a list child ahead of the chunks.

    A list child gets the announcement before the first list of a version.
    """
    key = encoding.key
    is_child = link.peer_id in state.plan.list_children
    if not encoding.listed or key in link.lists_sent or not (is_child or key in link.lists_due):
        return
    if is_child and all(sent.version != key.version for sent in link.lists_sent):
        link.known_versions.add(key.version)
        state.do(SendAnnouncement(link.link, key.version))
    link.lists_due.discard(key)
    link.lists_sent.add(key)
    state.do(SendChunkList(link.link, key))


def introduce_all(state: RelayState, link: LinkState) -> None:
    """Send a new link the chunk lists of the newest encodings."""
    for key in sorted(state.encodings)[-_INTRODUCED_MOST:]:
        introduce(state, link, state.encodings[key])
