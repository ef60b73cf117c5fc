"""Who is switched off, as it is kept for a coordinator after us, which begins with the set that was on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coordinator.core.events.events import StandbyRestored
from coordinator.core.members.membership import Members
from rollcast.wire.ids import PeerId

STANDBY = "standby"  # in the ledger's meta: who is switched off, JSON
PEERS_MAX = 16384


def standby_of(members: Members) -> dict[PeerId, tuple[str, bool]]:
    """Why, and whether the peer is not even sent versions. Pins are kept as orders."""
    found = {
        peer_id: (standing.standby, standing.dark)
        for peer_id, standing in members.standings()
        if standing.standby and not standing.pin
    }
    return dict(list(found.items())[-PEERS_MAX:])


def to_json(standby: Mapping[PeerId, tuple[str, bool]]) -> str:
    return msgspec.json.encode(standby).decode()


def from_json(text: str) -> StandbyRestored:
    """What the next coordinator's core is told."""
    return StandbyRestored(msgspec.json.decode(text, type=dict[PeerId, tuple[str, bool]]))
