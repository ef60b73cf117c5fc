"""Persist what peers earned, so that a restarted coordinator knows old members from newcomers. Pure.

Else every peer would begin slowly again after a restart, a newcomer would have as much as any, and each could use older
versions than it had used before.
"""

from __future__ import annotations

import msgspec

from coordinator.core.events.events import EarnedRestored, KeptPeer
from coordinator.core.members.membership import Members

EARNED = "earned"  # key in the ledger's meta table
PEERS_MAX = 16384


def earned_of(members: Members) -> EarnedRestored:
    """Return what the identities that delivered something earned; of more than PEERS_MAX the last ones are kept."""
    found = {
        peer_id: KeptPeer(int(one.earned.slots), one.oldest_own_version, one.invite)
        for peer_id, one in members.reputations()
        if one.earned.has_delivered
    }
    return EarnedRestored(dict(list(found.items())[-PEERS_MAX:]))


def restore(members: Members, event: EarnedRestored) -> None:
    """Take over what an earlier coordinator's peers earned, before any peer has joined."""
    for peer_id, kept in event.peers.items():
        reputation = members.reputation(peer_id)
        reputation.earned.slots, reputation.earned.has_delivered = float(kept.slots), kept.slots > 0
        reputation.generated_with(kept.oldest_own_version)
        reputation.invite = kept.invite


def to_json(earned: EarnedRestored) -> str:
    return msgspec.json.encode(earned).decode()


def from_json(text: str) -> EarnedRestored:
    """Return the event with which a restarted coordinator's core takes over what ``to_json`` wrote."""
    return msgspec.json.decode(text, type=EarnedRestored)
