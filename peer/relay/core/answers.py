"""Answer what the other ends of links ask for: reports of what is held, chunk lists, and chunks."""

from __future__ import annotations

from collections import deque

from peer.relay.core import forwarding, reports
from peer.relay.core.catch_up import asked_for
from peer.relay.core.state.actions import SendCancel, SendDecline, SendHave
from peer.relay.core.state.events import CancelReceived, RequestReceived, WantReceived
from peer.relay.core.state.relay_state import EncodingState, RelayState

# Requests are declined while more waits than leaves within _ANSWERED_WITHIN_S, and more chunks than _ANSWERS_LEAST.
_ANSWERED_WITHIN_S = 0.3
_ANSWERS_LEAST = 4
# Where chunks take long, a relay lets requests wait for as long as so many chunks take to come to itself: peers with
# slow downlinks, which get everything by request, would get nothing until all others have theirs. An origin does not:
# the whole broadcast waits for its uplink.
_ANSWERED_WITHIN_CHUNKS = 20


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
        link.wants_no_more(min(key for key in link.wants if key != event.key))
    if encoding is None:
        state.do(SendHave(link.link, event.key, 0, b"", False))
        return
    if event.chunk_list:
        link.lists_sent.discard(event.key)
        reports.introduce(state, link, encoding)
    reports.report(state, link, encoding)


def request_received(state: RelayState, event: RequestReceived) -> None:
    """Queue the requested chunks that are held; report what is held if others were requested as well."""
    link = state.links.get(event.link)
    encoding = state.encodings.get(event.key)
    if link is None:
        return
    if encoding is None:
        state.do(SendCancel(link.link, event.key, "not held here"))
        return
    if forwarding.answers_left(encoding, link.peer_id).take(0, state.now_s) > 0.0:
        state.do(SendCancel(link.link, event.key, "requested too often"))
        return
    room = min(state.settings.pulls_most - sum(map(len, link.pulls.values())), _room_for_answers(state, encoding))
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
        forwarding.pump(state, link)
    if len(offered) < len(event.indices):
        reports.report(state, link, encoding)


def _room_for_answers(state: RelayState, encoding: EncodingState) -> int:
    """Return how many more requested chunks leave this uplink soon; others are better asked of another holder.

    What waits for another end does not count: the link to a dead child may stay open, with copies for it, for seconds.
    """
    chunk_s = state.uplink.chunk_s
    if chunk_s <= 0.0:
        return state.settings.pulls_most
    since_s = forwarding.moving_since_s(state)
    waiting = sum(
        len(link.in_transport) + sum(map(len, link.pulls.values())) + sum(map(len, link.pushes.values()))
        for link in state.links.values()
        if not link.in_transport or link.given_at_s >= since_s
    )
    within_s = _ANSWERED_WITHIN_S
    if state.settings.role != "origin":
        within_s = max(within_s, _ANSWERED_WITHIN_CHUNKS * encoding.known_pace_s(state.now_s))
    return max(_ANSWERS_LEAST, int(within_s / chunk_s)) - waiting


def cancel_received(state: RelayState, event: CancelReceived) -> None:
    """Drop the requests of a peer for an encoding."""
    link = state.links.get(event.link)
    if link is not None:
        link.wants_no_more(event.key)
        link.pulls.pop(event.key, None)
