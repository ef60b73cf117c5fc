"""Serve keyframes to peers that fell behind: cut them into chunks on request, and keep them while they are fetched.

While versions come as deltas, no keyframe is sent. Every peer computes each state, cuts it into chunks when it
has time, and removes it after a few versions. With a version every second, it is removed before there was time, or
before a peer that fetches it has all of it. So a requested keyframe is cut up at once, and a few of those outlive the
retention. Pure.
"""

from __future__ import annotations

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.actions import ListChunks
from peer.relay.core.state.events import KeyframeMade
from peer.relay.core.state.relay_state import RelayState
from rollcast.wire.versions.records import KEYFRAME_ID

# A peer that fetches a keyframe requests more of it, or repeats its request, within this long.
_ASKS_WITHIN_S = 10.0
# Keyframes that outlive retention. Each is a whole state on the disk; a peer that begins later asks for a newer one.
_SPARED_MOST = 2
# States on record as computed but not cut up: stores keep fewer.
_MADE_MOST = 64


def keyframe_made(state: RelayState, event: KeyframeMade) -> None:
    """Record a state whose keyframe can be served once it is cut up; cut it up if a peer waits for it."""
    state.made.add(event.key)
    for old in sorted(state.made)[:-_MADE_MOST]:
        state.made.discard(old)
        state.asked_at_s.pop(old, None)
    if any(event.key in link.wants for link in state.links.values()):
        state.do(ListChunks(event.key))


def asked_for(state: RelayState, key: EncodingKey) -> None:
    """Note that a peer asks what is held of an encoding, or requests chunks of it; cut it up if it is not yet."""
    if key in state.made:
        state.do(ListChunks(key))
    if key in state.made or key in state.encodings:
        state.asked_at_s[key] = state.now_s


def spared(state: RelayState) -> frozenset[EncodingKey]:
    """Return the keyframes that retention must keep: peers fetch them, or this origin broadcasts them.

    If there are more than a few, the oldest are kept, because their transfers began first.
    """
    wanted = {key for link in state.links.values() for key in link.wants}
    since_s = state.now_s - _ASKS_WITHIN_S
    fetched = {key for key in wanted if state.asked_at_s.get(key, since_s) > since_s}
    keyframes = sorted(key for key in fetched | state.broadcasts.keys() if key.encoding_id == KEYFRAME_ID)
    return frozenset(keyframes[:_SPARED_MOST])
