"""Send copies to the children of a stripe, answer requests for chunks, and report what is held here.

A relay reports to its upstream link how many of the chunks given to it have left its uplink, counting copies whichever
child they were for: so it is given work in proportion to its real uplink, and one slow child does not stall the others.
(Reporting a chunk only when its slowest copy leaves stalls the relay; not waiting for slow copies at all lets the flows
that got ahead fill the uplink for good.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from peer.links.neighbours import EncodingKey
from peer.relay.core.catch_up import asked_for
from peer.relay.core.state.actions import (
    SendAnnouncement,
    SendCancel,
    SendChunk,
    SendChunkList,
    SendCredit,
    SendDecline,
    SendGot,
    SendHave,
)
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import (
    CancelReceived,
    GotReceived,
    HaveReceived,
    LinkId,
    RequestReceived,
    WantReceived,
)
from peer.relay.core.state.relay_state import Account, EncodingState, LinkState, Owned, Push, RelayState
from rollcast.wire.ids import ChunkIndex, PeerId, StripeId
from rollcast.wire.limits import CREDIT_CHUNKS_MAX
from rollcast.wire.links.frames import DIRECT_STRIPE, NO_STRIPE
from rollcast.wire.token_bucket import TokenBucket

# Newest encodings whose announcements and chunk lists a new link is sent.
_INTRODUCED_MOST = 2
# Chunks are given to as many links at once as this uplink serves within _AHEAD_S, and to _SLOTS_LEAST at least: with
# three, acknowledgements that wait in front of the receivers' uplinks left a fifth of a slow uplink idle.
_AHEAD_S = 0.25
_SLOTS_LEAST = 5
# A link whose chunk takes this many times as long as its share of the uplink waits for the other end.
_STUCK_TIMES = 4.0
# Requests are declined while more waits than leaves within _ANSWERED_WITHIN_S, and more chunks than _ANSWERS_LEAST.
_ANSWERED_WITHIN_S = 0.3
_ANSWERS_LEAST = 4
# Reports of what is held that are sent for each chunk that comes, to all that want them together; fewer where chunks
# are smaller than this, so that reports take no larger share of a slow uplink.
_REPORTS_PER_CHUNK = 2.0
_REPORTED_CHUNK_BYTES = 32 << 10
# A broadcast that gave out no chunk for this long is stuck.
_GIVES_WITHIN_S = 1.0

# ---------------------------------------------------------------- copies for children


def forward(state: RelayState, encoding: EncodingState, index: int, stripe: StripeId, sender: LinkState) -> None:
    """Queue a verified chunk for the stripe's children; its sender gets a report once the copies have left."""
    children = state.receivers(stripe, sender)
    reported = stripe not in (DIRECT_STRIPE, NO_STRIPE) and (sender.role == "origin" or bool(children))
    counted_most = _counted_most(state, encoding, children) if reported and children else 0
    copies = 0
    for child in children:
        push = Push(index, stripe, sender.link if reported else None)
        copies += queue_push(state, child, encoding, push, counted_most)
    if reported:
        sender.account.copies.append((encoding.key, index, copies))
        settle(state, sender)


def queue_push(state: RelayState, child: LinkState, encoding: EncodingState, push: Push, counted_most: int = 0) -> int:
    """Queue a copy for one child; what an origin gives to a root goes ahead of copies that are not passed on.

    Args:
        counted_most: a copy that has this many others before it counts as sent at once.

    Returns:
        1 if the report to the upstream waits for this copy, else 0.
    """
    if push.index in state.theirs(child, encoding):
        return 0
    waiting = child.pushes.setdefault(encoding.key, deque())
    place = sum(other.relayed for other in waiting) if push.relayed else len(waiting)
    if len(waiting) >= state.settings.pushes_most:
        state.counters.chunks_skipped += 1
        if place == len(waiting):
            return 0
        _count_as_sent(state, waiting.pop().upstream)
    counted = place < counted_most and not state.is_stuck(child)
    if not counted:
        push.upstream = None
    waiting.insert(place, push)
    pump(state, child)
    return int(counted and push.upstream is not None)


def _counted_most(state: RelayState, encoding: EncodingState, children: Sequence[LinkState]) -> int:
    """Return how many copies that count may wait for one child.

    Children that are behind share the number that may count altogether; a child that is behind by more than that is
    slow for a reason of its own.
    """
    least, most = state.settings.pushes_counted_least, state.settings.chunks_counted * len(children)
    behind = sum(least <= len(link.pushes.get(encoding.key, ())) <= most for link in children)
    return max(least, most // max(1, behind))


def settle(state: RelayState, upstream: LinkState) -> None:
    """Report the oldest chunks of an upstream link for which as many copies have left as were queued."""
    account = upstream.account
    done: dict[EncodingKey, list[int]] = {}
    while account.copies and account.left >= account.copies[0][2]:
        key, index, copies = account.copies.popleft()
        account.left -= copies
        done.setdefault(key, []).append(index)
    for key, indices in done.items():
        state.do(SendCredit(upstream.link, key, tuple(indices)))
    if not account.copies:
        account.left = 0


def _count_as_sent(state: RelayState, upstream_id: LinkId | None) -> None:
    upstream = state.links.get(upstream_id) if upstream_id is not None else None
    if upstream is not None:
        upstream.account.left += 1
        settle(state, upstream)


def release_stuck(state: RelayState) -> None:
    """Count the copies for children that do not read as sent, so that the upstream does not wait for these children."""
    for link in state.links.values():
        if state.is_stuck(link):
            for push in link.copies():
                upstream, push.upstream = push.upstream, None
                _count_as_sent(state, upstream)


# ---------------------------------------------------------------- the transport


def chunk_sent(state: RelayState, link_id: LinkId) -> None:
    """Note that a chunk left; the link has room for the next."""
    link = state.links.get(link_id)
    if link is None or not link.in_transport:
        return
    state.chunks_left += 1
    push = link.in_transport.popleft()
    if not link.in_transport:
        del state.sending[link_id]
    state.uplink.left(state.now_s)
    if push is not None:
        _count_as_sent(state, push.upstream)
    pump(state, link)


def pump(state: RelayState, link: LinkState) -> None:
    """Fill the link's transport in its turn: copies come before answers, newer versions before older ones.

    At an origin, links whose next chunk is for a root come first: all below the root wait for it too.
    """
    turns = state.turns_ahead if _next_is_passed_on(link) else state.turns
    if link.link not in turns:
        turns.append(link.link)
    take_turns(state)


def _next_is_passed_on(link: LinkState) -> bool:
    waiting = link.pushes[max(link.pushes)] if link.pushes else None
    return waiting is not None and len(waiting) > 0 and waiting[0].relayed


def take_turns(state: RelayState) -> None:
    """Give chunks to the links that wait for their turn, as many at a time as leave within a moment."""
    while (turns := state.turns_ahead or state.turns) and _has_slot(state):
        link = state.links.get(turns.popleft())
        while link is not None and len(link.in_transport) < state.settings.outbox_chunks:
            if not (_send_push(state, link) or _send_pull(state, link)):
                break


def _has_slot(state: RelayState) -> bool:
    """Return whether another chunk may be given to a transport.

    On a slow uplink a chunk for each of many links would delay all of them, and this process's own requests and reports
    behind them. A link whose chunk takes far longer than its share waits for the other end and holds no slot.
    """
    if state.uplink.chunk_s <= 0.0 or len(state.sending) < _SLOTS_LEAST:
        return True
    since_s = _moving_since_s(state)
    given = [one.given_at_s for one in state.sending.values() if one.given_at_s >= since_s]
    return not given or len(given) < _slots(state.uplink.chunk_s_at_least(min(given), state.now_s))


def _slots(chunk_s: float) -> float:
    return max(_SLOTS_LEAST, _AHEAD_S / chunk_s)


def _moving_since_s(state: RelayState) -> float:
    """Return the time since when a link whose chunk has not left would wait for the other end, not for this uplink."""
    return state.now_s - _STUCK_TIMES * _slots(state.uplink.chunk_s) * state.uplink.chunk_s


def _send_push(state: RelayState, link: LinkState) -> bool:
    while link.pushes:
        key = max(link.pushes) if len(link.pushes) > 1 else next(iter(link.pushes))
        waiting = link.pushes[key]
        while waiting:
            push = waiting.popleft()
            if _send(state, link, key, push.index, push):
                return True
            _count_as_sent(state, push.upstream)
        del link.pushes[key]
    return False


def _send_pull(state: RelayState, link: LinkState) -> bool:
    while link.pulls:
        key = max(link.pulls)
        waiting = link.pulls[key]
        while waiting:
            if _send(state, link, key, waiting.popleft(), None):
                return True
        del link.pulls[key]
    return False


def _send(state: RelayState, link: LinkState, key: EncodingKey, index: int, push: Push | None) -> bool:
    """Send a chunk unless it was removed or the other end got it elsewhere meanwhile; return whether it was sent."""
    encoding = state.encodings.get(key)
    if encoding is None or index not in encoding.have or not state.theirs(link, encoding).add(index):
        return False
    if not state.sending:
        state.uplink.begins(state.now_s)
    link.in_transport.append(push)
    state.sending[link.link] = link
    link.given_at_s, link.given_after = state.now_s, state.chunks_left
    if push is not None and state.settings.role != "origin" and state.reports(link.peer_id, push.stripe):
        link.owned.append(Owned(key, index, state.now_s, alone=False))
    if push is None:
        _answers(encoding, link.peer_id).take(encoding.chunk_size_bytes, state.now_s)
    state.do(SendChunk(link.link, key, ChunkIndex(index), NO_STRIPE if push is None else push.stripe))
    return True


def release_copies(state: RelayState, link: LinkState) -> None:
    """Count the copies of a lost link as sent, so that the upstreams do not wait for them."""
    copies = link.copies()
    link.pushes.clear()
    link.in_transport.clear()
    state.sending.pop(link.link, None)
    link.account = Account()
    for push in copies:
        _count_as_sent(state, push.upstream)


# ---------------------------------------------------------------- what others ask

# One peer may request this many copies of an encoding at once, and one more each time the interval has passed. An
# honest peer needs one, and parts of more after failures.
_COPIES_ASKED_MOST = 8
_COPY_ASKED_EVERY_S = 300.0


def want_received(state: RelayState, event: WantReceived) -> None:
    """Report what is held of an encoding now, and as that grows; the encoding may be unknown here still."""
    link = state.links.get(event.link)
    if link is None:
        return
    encoding = state.encodings.get(event.key)
    if encoding is None and event.key not in state.made and event.key.version < state.newest_version():
        state.do(SendCancel(link.link, event.key, "not held here"))
        return
    link.wants[event.key] = -1
    asked_for(state, event.key)
    if event.chunk_list:
        link.lists_due.add(event.key)
    while len(link.wants) > state.settings.wants_per_link_most:
        _wants_no_more(link, min(key for key in link.wants if key != event.key))
    if encoding is None:
        state.do(SendHave(link.link, event.key, 0, b"", False))
        return
    if event.chunk_list:
        link.lists_sent.discard(event.key)
        introduce(state, link, encoding)
    report(state, link, encoding)


def request_received(state: RelayState, event: RequestReceived) -> None:
    """Queue the requested chunks that are held; report what is held if others were requested as well."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None:
        return
    if encoding is None:
        state.do(SendCancel(link.link, event.key, "not held here"))
        return
    if _answers(encoding, link.peer_id).take(0, state.now_s) > 0.0:
        state.do(SendCancel(link.link, event.key, "requested too often"))
        return
    room = min(state.settings.pulls_most - sum(map(len, link.pulls.values())), _room_for_answers(state))
    theirs = state.theirs(link, encoding)
    offered = [index for index in event.indices if index in encoding.have]
    held, declined = offered[: max(0, room)], offered[max(0, room) :]
    if declined:
        state.do(SendDecline(link.link, event.key, tuple(declined)))
    if held:
        asked_for(state, event.key)
        waiting = link.pulls.setdefault(event.key, deque())
        for index in held:
            theirs.discard(index)  # the requester lacks it, although it may have been sent before
            waiting.append(index)
        pump(state, link)
    if len(offered) < len(event.indices):
        report(state, link, encoding)


def _room_for_answers(state: RelayState) -> int:
    """Return how many more requested chunks leave this uplink soon; others are better asked of another holder.

    What waits for another end does not count: the link to a dead child may stay open, with copies for it, for seconds.
    """
    chunk_s = state.uplink.chunk_s
    if chunk_s <= 0.0:
        return state.settings.pulls_most
    since_s = _moving_since_s(state)
    waiting = sum(
        len(link.in_transport) + sum(map(len, link.pulls.values())) + sum(map(len, link.pushes.values()))
        for link in state.links.values()
        if not link.in_transport or link.given_at_s >= since_s
    )
    return max(_ANSWERS_LEAST, int(_ANSWERED_WITHIN_S / chunk_s)) - waiting


def _answers(encoding: EncodingState, peer_id: PeerId) -> TokenBucket:
    """Return the bucket that limits how much of an encoding one peer may request."""
    known = encoding.answers.get(peer_id)
    if known is None:
        copy_bytes = encoding.chunk_count * encoding.chunk_size_bytes
        known = TokenBucket(copy_bytes / _COPY_ASKED_EVERY_S, _COPIES_ASKED_MOST * copy_bytes)
        encoding.answers[peer_id] = known
    return known


def cancel_received(state: RelayState, event: CancelReceived) -> None:
    """Drop the requests of a peer for an encoding."""
    link = state.links.get(event.link)
    if link is not None:
        _wants_no_more(link, event.key)
        link.pulls.pop(event.key, None)


def _wants_no_more(link: LinkState, key: EncodingKey) -> bool:
    """Stop reporting an encoding on a link; return whether it was reported until now."""
    link.lists_due.discard(key)
    return link.wants.pop(key, None) is not None


def note_theirs(state: RelayState, event: HaveReceived) -> None:
    """Note which chunks the other end holds and so need not be sent."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None or encoding is None or event.chunk_count != encoding.chunk_count:
        return
    if event.complete:
        link.theirs[event.key] = ChunkSet.full(event.chunk_count)
        _wants_no_more(link, event.key)
        return
    theirs = ChunkSet.from_bitmap(event.chunk_count, event.bitmap)
    if theirs is not None:
        theirs.add_all(state.theirs(link, encoding))
        link.theirs[event.key] = theirs


# ---------------------------------------------------------------- reports of what is held


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


def discard_encoding(state: RelayState, key: EncodingKey, reason: str) -> None:
    """Discard what the links keep of an encoding that is no longer held or will not be; cancel the others' requests."""
    state.asked_at_s.pop(key, None)
    for link in state.links.values():
        wanted = _wants_no_more(link, key)
        for push in link.pushes.pop(key, ()):
            _count_as_sent(state, push.upstream)
        link.pulls.pop(key, None)
        link.theirs.pop(key, None)
        link.lists_sent.discard(key)
        link.owned = deque(owned for owned in link.owned if owned.key != key)
        if wanted:
            state.do(SendCancel(link.link, key, reason))
