"""Show what is known about the work of peers and invites: one card each."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.decisions.state import CoreState
from coordinator.core.members.reputation_card import Card, card_of_invite
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId

CARDS_MAX = 512  # of each kind


@dataclass(frozen=True, slots=True)
class ReputationsView:
    """The cards of peers and of invites."""

    peers: tuple[Card, ...]
    invites: tuple[Card, ...]


def build_reputations(state: CoreState, peer: str = "") -> ReputationsView:
    """Return the cards of one peer, named by id or name, and its invite.

    With an empty name, return those of all peers that are not in good order, and of all invites whose peers were judged
    or are connected, CARDS_MAX of each at most.

    Raises:
        MalformedMessage: the run has no such peer, or several.
    """
    if peer:
        return _of_one(state, peer)
    identities, judged = state.audit.known()
    connected = [one for one in state.members if one.role == "peer"]
    candidates = dict.fromkeys([*identities, *(one for one, found in state.members.reputations() if found.kept_out)])
    cards = (state.card_of(one) for one in candidates)
    suspects = [card for card in cards if card.state in ("watched", "quarantined", "banned")]
    invites = dict.fromkeys([*judged, *(one.invite for one in connected if one.invite)])
    return ReputationsView(
        tuple(suspects[-CARDS_MAX:]), tuple(_invite(state, one) for one in list(invites)[-CARDS_MAX:])
    )


def _of_one(state: CoreState, words: str) -> ReputationsView:
    peer_id = state.members.peer_named(words) or (PeerId(words) if state.audit.record(PeerId(words)) else None)
    if peer_id is None:
        raise MalformedMessage(
            f"no peer of this run is called {words[:64]!r}, or several are", fix="see `rollcast workers --all`"
        )
    invite = state.members.reputation(peer_id).invite
    return ReputationsView((state.card_of(peer_id),), (_invite(state, invite),) if invite else ())


def _invite(state: CoreState, invite: str) -> Card:
    return card_of_invite(state.audit.invite(invite), invite, on_probation=state.audit.on_probation(invite))
