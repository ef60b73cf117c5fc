"""Decide, at the origin of a broadcast, which relay is given which chunk.

Push with ownership (Mutualcast; Li, Chou and Zhang 2005): each chunk is given to one stripe, whose root passes it on,
so the origin sends it once. In trees a stripe has several roots, and those of them that keep up are given the chunk. A
root has a window of chunks, steered by how long it takes to pass one on, so each gets work in proportion to its real
uplink, which need not be known. Leaves that the origin serves itself come after the roots, for which more peers wait.
If no root has room and the origin's own uplink would idle, the origin sends copies to all neighbours. Near the end a
root that would finish after the others gets no more.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import chain

from peer.links.neighbours import EncodingKey
from peer.relay.core import forwarding
from peer.relay.core.state.events import BroadcastStarted, CreditReceived, LinkId
from peer.relay.core.state.relay_state import Again, Broadcast, EncodingState, LinkState, Owned, Push, RelayState
from peer.relay.core.state.window import ServiceWindow
from rollcast.wire.ids import StripeId
from rollcast.wire.links.frames import DIRECT_STRIPE

# Near the end a root may take this many times as long as the fastest.
_SLOWER_AT_END_MOST = 1.5
# Broadcasts in progress at the same time; peers request what they lack of older ones.
_BROADCASTS_MOST = 4
# If nothing else leaves, a chunk that its link does not take for this long, and for so many times as long as usual,
# waits for the other end and not for the uplink.
_STUCK_S_LEAST = 0.25
_STUCK_TIMES = 3.0
# A chunk is given again when its root takes longer than its window calls late, and longer than this.
_GIVEN_AGAIN_S_LEAST = 0.5
# For a root that has not passed on a chunk yet, only the plan says what to expect: allow this many times as long, and
# this much more.
_EXPECTED_TIMES = 3.0
_EXPECTED_S_LEAST = 3.0
_UNKNOWN_BYTES_PER_SECOND = 10_000.0


def broadcast_started(state: RelayState, event: BroadcastStarted, now: float) -> None:
    """Begin to broadcast an encoding: the chunks that are held here, and the others as they arrive."""
    if event.key not in state.encodings or event.key in state.broadcasts:
        return
    if not state.broadcasts:
        for window in state.windows.values():
            window.begin()
    state.broadcasts[event.key] = Broadcast(event.key, started_at_s=now, given_at_s=now)
    while len(state.broadcasts) > _BROADCASTS_MOST:
        del state.broadcasts[min(state.broadcasts)]
    issue(state, now)


def credit_received(state: RelayState, event: CreditReceived, now: float) -> None:
    """Learn from a root's report which chunks it has passed on, and give out further ones."""
    link = state.links.get(event.link)
    if link is None:
        return
    passed_on, held, kept = set(event.indices), len(link.owned), deque[Owned]()
    for owned in link.owned:
        if owned.index not in passed_on or owned.key != event.key:
            kept.append(owned)
            continue
        window = _window(state, link, owned)
        if window is not None:
            window.observe(now - owned.given_at_s, held)
        held -= 1
    if len(kept) < len(link.owned):
        link.owned = kept
        state.note_report(link.peer_id)
    issue(state, now)


def _window(state: RelayState, link: LinkState, owned: Owned) -> ServiceWindow | None:
    encoding = state.encodings.get(owned.key)
    return None if encoding is None else state.window_of(link.peer_id, encoding.chunk_size_bytes)


def issue(state: RelayState, now: float) -> None:
    """Give out chunks, the newest version first, while a root has room and little waits for this uplink."""
    while (broadcast := _next_broadcast(state)) is not None:
        encoding = state.encodings[broadcast.key]
        passed_on, others = _backlog(state, now)
        if passed_on + max(0, others - len(state.links)) >= state.settings.issue_ahead_chunks:
            return
        failed = broadcast.again[0].failed if broadcast.again else None
        stripe = _best_stripe(state, broadcast, encoding, failed, now)
        if stripe is not None:
            _give(state, broadcast, encoding, stripe, now)
        elif passed_on + others == 0 and state.plan.direct_copies and _some_link_is_idle(state):
            _send_directly(state, broadcast, encoding)
        else:
            return


def _next_broadcast(state: RelayState) -> Broadcast | None:
    """Return the newest broadcast whose next chunk is here; remove those that have ended."""
    for key in sorted(state.broadcasts, reverse=True):
        broadcast, encoding = state.broadcasts[key], state.encodings.get(key)
        if encoding is None or not broadcast.left(encoding.chunk_count) or _all_have(state, encoding):
            del state.broadcasts[key]
        elif broadcast.again or broadcast.next in encoding.have:
            return broadcast
    return None


def _all_have(state: RelayState, encoding: EncodingState) -> bool:
    """Return whether every neighbour has it, from this process before a restart or from another source."""
    linked = False
    for peer_id in state.neighbours:
        link = state.link_to.get(peer_id)
        if link is not None:
            linked = True
            if not state.theirs(link, encoding).complete:
                return False
    return linked


def _backlog(state: RelayState, now: float) -> tuple[int, int]:
    """Return how many copies wait for this uplink: of those that are passed on from the other end, and of the others.

    The others leave when none of the first kind wait, so that one of them for each link delays no relay. Copies for a
    child that does not read do not count, because others need not wait for them. Answers to requests do not count
    either: otherwise a few peers that request much would end the broadcast.
    """
    relayed = count = 0
    usual_s = state.uplink.transit_s or math.inf
    stuck_s = max(_STUCK_S_LEAST, _STUCK_TIMES * usual_s)
    for link in state.links.values():
        if not link.pushes and not link.in_transport:
            continue
        if link.in_transport and (now - link.given_at_s > stuck_s or state.is_stuck(link)):
            continue
        for push in chain(link.in_transport, *link.pushes.values()):
            if push is not None:
                count += 1
                relayed += push.relayed
    return relayed, count - relayed


def _some_link_is_idle(state: RelayState) -> bool:
    """Return whether a neighbour would be sent a copy at once."""
    links = map(state.link_to.get, state.neighbours)
    return any(link is not None and not link.in_transport for link in links)


def _roots(state: RelayState, stripe: StripeId) -> tuple[list[LinkState], list[LinkState]]:
    """Return the links to the roots of a stripe that pass its chunks on, and to the others.

    Only the first kind decides how much a stripe is given, unless there are none.
    """
    roots = state.receivers(stripe, None)
    relays = [root for root in roots if state.passes_on(root.peer_id, stripe)]
    return (relays, [root for root in roots if root not in relays]) if relays else (roots, [])


def _keeping_up(state: RelayState, roots: list[LinkState], size_bytes: int) -> list[LinkState]:
    """Return the roots of one stripe without those that have no room while half of the roots have some.

    Such a root is given nothing until it has passed on what it has: the members below it request the chunks from their
    parents in other stripes. So a slow or dead root costs its own subtree, and not the whole stripe.
    """
    if len(roots) == 1:
        return roots
    used = {root.link: len(root.owned) / state.window_of(root.peer_id, size_bytes).chunks for root in roots}
    ordered = sorted(roots, key=lambda root: used[root.link])
    kept_least = (len(roots) + 1) // 2
    return [root for place, root in enumerate(ordered) if place < kept_least or used[root.link] < 1.0]


def _best_stripe(
    state: RelayState, broadcast: Broadcast, encoding: EncodingState, failed: LinkId | None, now: float
) -> StripeId | None:
    """Return the stripe whose roots have least of their windows in use; None if no root has room.

    Near the end only stripes that would be done in time count.

    Args:
        failed: the root that kept the chunk too long; it is chosen only if no other has room.
    """
    remaining_s = broadcast.remaining_s(encoding.chunk_count, now)
    size_bytes, fastest_s = encoding.chunk_size_bytes, float("inf")
    offers: list[tuple[bool, float, StripeId, float]] = []  # the smallest is the best
    for stripe in state.stripes:
        roots, _ = _roots(state, stripe)
        if not roots:
            continue
        service_s, used, has_failed = 0.0, 0.0, False
        for root in _keeping_up(state, roots, size_bytes):
            window = state.window_of(root.peer_id, size_bytes)
            service_s = max(service_s, window.service_s)
            used = max(used, len(root.owned) / window.chunks)
            has_failed |= root.link == failed
        if service_s > 0.0:  # otherwise no root of it has passed on a chunk yet
            fastest_s = min(fastest_s, service_s)
        offers.append((has_failed, used, stripe, service_s))
    in_time_s = remaining_s + _SLOWER_AT_END_MOST * fastest_s
    usable = [offer for offer in offers if offer[1] < 1.0 and offer[3] <= in_time_s]
    return min(usable)[2] if usable else None


def _take(broadcast: Broadcast, now: float) -> int:
    """Remove and return the next chunk to give out."""
    broadcast.given += 1
    broadcast.given_at_s = now
    if broadcast.again:
        return broadcast.again.popleft().index
    broadcast.next += 1
    return broadcast.next - 1


def _give(state: RelayState, broadcast: Broadcast, encoding: EncodingState, stripe: StripeId, now: float) -> None:
    index = _take(broadcast, now)
    roots, leaves = _roots(state, stripe)
    roots = _keeping_up(state, roots, encoding.chunk_size_bytes)
    for root in roots:
        # A chunk that is given again may be there already: the root passes it on all the same.
        state.theirs(root, encoding).discard(index)
        root.owned.append(Owned(encoding.key, index, now, alone=len(roots) == 1))
        forwarding.queue_push(state, root, encoding, Push(index, stripe, None, relayed=True))
    for leaf in leaves:
        forwarding.queue_push(state, leaf, encoding, Push(index, stripe, None))


def _send_directly(state: RelayState, broadcast: Broadcast, encoding: EncodingState) -> None:
    index = _take(broadcast, state.now_s)
    state.counters.chunks_direct += 1
    for peer_id in state.neighbours:
        link = state.link_to.get(peer_id)
        if link is not None:
            forwarding.queue_push(state, link, encoding, Push(index, DIRECT_STRIPE, None))


def give_again(state: RelayState, link: LinkState, now: float) -> None:
    """Give the chunks that a lost root was to pass on to other roots."""
    _put_back(state, link, list(link.owned), now)
    link.owned.clear()
    issue(state, now)


def watch_roots(state: RelayState, now: float) -> None:
    """Give chunks that a root has kept for far too long to another one."""
    for link in state.links.values():
        late = [owned for owned in link.owned if _is_late(state, link, owned, now)]
        for owned in late:
            link.owned.remove(owned)
            window = _window(state, link, owned)
            if window is not None:
                # Whoever the origin gives a chunk reports it; relays of an earlier release report to no other parent.
                if window.answered or state.settings.role == "origin":
                    state.note_failure(link.peer_id)
                window.late(now - owned.given_at_s)
        _put_back(state, link, late, now)
    issue(state, now)


def _is_late(state: RelayState, link: LinkState, owned: Owned, now: float) -> bool:
    window = _window(state, link, owned)
    if window is None:
        return False
    patience_s = window.late_after_s if window.service_s else _expected_s(state, link, owned)
    if not window.service_s and state.is_only_heir(link.peer_id):
        # The chunks of a broadcast in progress reach it as they reach the roots.
        known = [one.late_after_s for one in state.windows.values() if one.answered]
        patience_s = min(patience_s, max(known, default=patience_s))
    return now - owned.given_at_s > max(_GIVEN_AGAIN_S_LEAST, patience_s)


def _expected_s(state: RelayState, link: LinkState, owned: Owned) -> float:
    """Return the seconds that a root may take before it has passed on its first chunk, from the plan's rates."""
    rates = [stripe.bytes_per_second for stripe in state.plan.stripes if link.peer_id in stripe.children]
    given_bytes = len(link.owned) * state.encodings[owned.key].chunk_size_bytes
    return _EXPECTED_S_LEAST + _EXPECTED_TIMES * given_bytes / (max(rates, default=0.0) or _UNKNOWN_BYTES_PER_SECOND)


def _put_back(state: RelayState, root: LinkState, chunks: list[Owned], now: float) -> None:
    for owned in chunks:
        # Where other roots of the stripe were given it too, only the members below this one have to request it.
        if owned.alone and owned.key in state.encodings:
            broadcast = state.broadcasts.setdefault(owned.key, _ended(state, owned.key, now))
            broadcast.again.append(Again(owned.index, root.link))
            state.counters.chunks_given_again += 1


def _ended(state: RelayState, key: EncodingKey, now: float) -> Broadcast:
    """Return a broadcast of which all chunks were given out, for those that are given again."""
    return Broadcast(key, started_at_s=now, next=state.encodings[key].chunk_count)
