"""Persist the standby set and what the capacity model has learned, for a restarted coordinator to resume with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coordinator.core.events.events import LearnedRestored, StandbyRestored
from coordinator.core.members.membership import Members
from rollcast.wire.ids import PeerId

LEARNED = "learned"  # key in the ledger's meta table, for what the capacity model has learned as JSON
STANDBY = "standby"  # key in the ledger's meta table, for the standby set as JSON
PEERS_MAX = 16384


def standby_of(members: Members) -> dict[PeerId, tuple[str, bool]]:
    """Return, for each peer on standby, the reason, and whether it is not even sent versions.

    Pinned peers are left out, because pins are kept as orders; of more than PEERS_MAX the last ones are kept.
    """
    found = {
        peer_id: (reputation.standby, reputation.dark)
        for peer_id, reputation in members.reputations()
        if reputation.standby and not reputation.pin
    }
    return dict(list(found.items())[-PEERS_MAX:])


def to_json(standby: Mapping[PeerId, tuple[str, bool]]) -> str:
    return msgspec.json.encode(standby).decode()


def from_json(text: str) -> StandbyRestored:
    """Return the event with which a restarted coordinator's core takes over the set that ``to_json`` wrote."""
    return StandbyRestored(msgspec.json.decode(text, type=dict[PeerId, tuple[str, bool]]))


def learned_to_json(learned: LearnedRestored) -> str:
    return msgspec.json.encode(learned).decode()


def learned_from_json(text: str) -> LearnedRestored:
    """Return the event with which a restarted coordinator's core takes over what ``learned_to_json`` wrote."""
    return msgspec.json.decode(text, type=LearnedRestored)
