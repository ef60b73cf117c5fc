"""Keyframes for those who fell behind: cut up once somebody asks for them, kept while they are fetched. Pure.

Where versions come as deltas nobody is sent a keyframe. Everybody makes the states, cuts them up when there is time for
it, and removes them after a few versions: with a version every second that is before there was time, and before one who
asks has all of it. So what is asked for is cut up at once, and a few of those stay longer than retention has it.
"""

from __future__ import annotations

from peer.links.neighbours import EncodingKey
from peer.relay.core.actions import ListChunks
from peer.relay.core.events import KeyframeMade
from peer.relay.core.state import RelayState
from rollcast.wire.versions.records import KEYFRAME_ID

# Who fetches a keyframe asks for more of it, or again, within this long.
_ASKS_WITHIN_S = 10.0
# Keyframes that stay for those who fetch them. Each is a whole state on the disk; who comes later asks for a newer one.
_SPARED_MOST = 2
# States that are remembered as made and not cut up: stores keep fewer.
_MADE_MOST = 64


def keyframe_made(state: RelayState, event: KeyframeMade) -> None:
    """A state is here whose keyframe can be served once it is cut up."""
    state.made.add(event.key)
    for old in sorted(state.made)[:-_MADE_MOST]:
        state.made.discard(old)
        state.asked_at_s.pop(old, None)
    if any(event.key in link.wants for link in state.links.values()):
        state.do(ListChunks(event.key))


def asked_for(state: RelayState, key: EncodingKey) -> None:
    """Somebody asks what we hold of an encoding, or for chunks of it."""
    if key in state.made:
        state.do(ListChunks(key))
    if key in state.made or key in state.encodings:
        state.asked_at_s[key] = state.now_s


def spared(state: RelayState) -> frozenset[EncodingKey]:
    """Keyframes that retention is to leave alone: somebody fetches them, or this origin sends them to everybody. The
    oldest ones, which were begun first."""
    wanted = {key for link in state.links.values() for key in link.wants}
    since_s = state.now_s - _ASKS_WITHIN_S
    fetched = {key for key in wanted if state.asked_at_s.get(key, since_s) > since_s}
    keyframes = sorted(key for key in fetched | state.broadcasts.keys() if key.encoding_id == KEYFRAME_ID)
    return frozenset(keyframes[:_SPARED_MOST])
