"""Close links to peers that misbehave, and reassign what a lost link carried.

The copies queued on it count as sent, the chunks requested on it are asked of other sources, and an origin gives the
chunks that the other end had yet to pass on to other roots.
"""

from __future__ import annotations

from peer.links.neighbours import EncodingKey
from peer.relay.core import forwarding, origin
from peer.relay.core.pulling import pull
from peer.relay.core.state.actions import Accuse, CloseLink
from peer.relay.core.state.relay_state import LinkState, RelayState
from rollcast.wire.ids import ChunkIndex


def punish(
    state: RelayState, link: LinkState, key: EncodingKey, index: ChunkIndex, why: str, now: float, sent: bytes = b""
) -> None:
    """Give up all links with a peer that sent wrong bytes, and neither dial nor ask it for ``penalty_s`` seconds.

    Members of the run are reported to the coordinator. The link on which the bytes came stays open for their receipt,
    and carries nothing else. Mirrors and the learner have no reputation.

    Args:
        sent: BLAKE3 of the bytes that came as a chunk; empty if they were no chunk.
    """
    accused = link.role in ("peer", "origin")
    if accused:
        state.do(Accuse(link.link, link.peer_id, key, index, why, sent))
    state.penalised_until_s[link.peer_id] = now + state.settings.penalty_s
    for other in [other for other in state.links.values() if other.peer_id == link.peer_id]:
        if accused and other is link:
            _give_up(state, other, now)
        else:
            close_link(state, other, why, now)


def close_link(state: RelayState, link: LinkState, reason: str, now: float) -> None:
    """Close a link, and wait the longest time between two dials before dialling its other end again."""
    state.do(CloseLink(link.link, reason))
    _give_up(state, link, now)


def _give_up(state: RelayState, link: LinkState, now: float) -> None:
    dialling = state.dial_state(link.peer_id)
    dialling.failures += 1
    dialling.retry_at_s = now + state.settings.redial_most_s
    discard_link(state, link, now)


def discard_link(state: RelayState, link: LinkState, now: float) -> None:
    """Remove a link that is closed or lost, and reassign what it carried."""
    del state.links[link.link]
    older = [other for other in state.links.values() if other.peer_id == link.peer_id]
    if older:
        state.link_to[link.peer_id] = max(older, key=lambda other: other.link)
    else:
        state.link_to.pop(link.peer_id, None)
    forwarding.release_copies(state, link)
    pull.lose_link(state, link.link, now)
    if link.owned:
        origin.give_again(state, link, now)
