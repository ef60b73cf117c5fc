"""Send copies to the children of a stripe, and give every link's chunks to its transport in turn.

A relay reports to its upstream link how many of the chunks given to it have left its uplink, counting copies whichever
child they were for: so it is given work in proportion to its real uplink, and one slow child does not stall the others.
(Reporting a chunk only when its slowest copy leaves stalls the relay; not waiting for slow copies at all lets the flows
that got ahead fill the uplink for good.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.actions import SendCancel, SendChunk, SendCredit
from peer.relay.core.state.events import LinkId
from peer.relay.core.state.relay_state import Account, EncodingState, LinkState, Owned, Push, RelayState
from rollcast.wire.ids import ChunkIndex, PeerId, StripeId
from rollcast.wire.links.frames import DIRECT_STRIPE, NO_STRIPE
from rollcast.wire.token_bucket import TokenBucket

# Chunks are given to as many links at once as this uplink serves within _AHEAD_S, and to _SLOTS_LEAST at least: with
# three, acknowledgements that wait in front of the receivers' uplinks left a fifth of a slow uplink idle.
_AHEAD_S = 0.25
_SLOTS_LEAST = 5
# A link whose chunk takes this many times as long as its share of the uplink waits for the other end.
_STUCK_TIMES = 4.0
# One peer may request this many copies of an encoding at once, and one more each time the interval has passed. An
# honest peer needs one, and parts of more after failures.
_COPIES_ASKED_MOST = 8
_COPY_ASKED_EVERY_S = 300.0

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
    state.uplink.left(link.given_bytes, link.given_at_s, state.now_s)
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
    since_s = moving_since_s(state)
    given = [one.given_at_s for one in state.sending.values() if one.given_at_s >= since_s]
    return not given or len(given) < _slots(state.uplink.chunk_s_at_least(min(given), state.now_s))


def _slots(chunk_s: float) -> float:
    return max(_SLOTS_LEAST, _AHEAD_S / chunk_s)


def moving_since_s(state: RelayState) -> float:
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
    state.uplink.given(encoding.chunk_size_bytes)
    link.in_transport.append(push)
    state.sending[link.link] = link
    link.given_at_s, link.given_after, link.given_bytes = state.now_s, state.chunks_left, encoding.chunk_size_bytes
    if push is not None and state.settings.role != "origin" and state.reports(link.peer_id, push.stripe):
        link.owned.append(Owned(key, index, state.now_s, alone=False))
    if push is None:
        answers_left(encoding, link.peer_id).take(encoding.chunk_size_bytes, state.now_s)
    state.do(SendChunk(link.link, key, ChunkIndex(index), NO_STRIPE if push is None else push.stripe))
    return True


def answers_left(encoding: EncodingState, peer_id: PeerId) -> TokenBucket:
    """Return the bucket that limits how much of an encoding one peer may request."""
    known = encoding.answers.get(peer_id)
    if known is None:
        copy_bytes = encoding.chunk_count * encoding.chunk_size_bytes
        known = TokenBucket(copy_bytes / _COPY_ASKED_EVERY_S, _COPIES_ASKED_MOST * copy_bytes)
        encoding.answers[peer_id] = known
    return known


def release_copies(state: RelayState, link: LinkState) -> None:
    """Count the copies of a lost link as sent, so that the upstreams do not wait for them."""
    copies = link.copies()
    link.pushes.clear()
    link.in_transport.clear()
    state.sending.pop(link.link, None)
    link.account = Account()
    for push in copies:
        _count_as_sent(state, push.upstream)


def discard_encoding(state: RelayState, key: EncodingKey, reason: str) -> None:
    """Discard what the links keep of an encoding that is no longer held or will not be; cancel the others' requests."""
    state.asked_at_s.pop(key, None)
    for link in state.links.values():
        wanted = link.wants_no_more(key)
        for push in link.pushes.pop(key, ()):
            _count_as_sent(state, push.upstream)
        link.pulls.pop(key, None)
        link.theirs.pop(key, None)
        link.lists_sent.discard(key)
        link.owned = deque(owned for owned in link.owned if owned.key != key)
        if wanted:
            state.do(SendCancel(link.link, key, reason))
