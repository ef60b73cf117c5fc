"""Name who takes the place of a relay that fails, so that the members below it need not wait for a new plan.

A relay that dies or becomes slow leaves the relays below it without a stripe's chunks, and their uplinks idle, until
the coordinator has noticed and planned anew: longer than most broadcasts take. So its parent is told heirs, the
strongest of the relays below it. They are sent the chunks in its place, and pass them on to the other relays below it
as well. Leaves need no heir: they request what they lack from their parents in other stripes. IP fast reroute works
alike, with detours that are computed before anything fails (RFC 4090, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.core.broadcast.nodes import RelayNode
from rollcast.wire.ids import PeerId

# Each heir costs its grandparent a copy that no plan counts. Two relays carry on what one that was stronger did.
_HEIRS_MAX = 2


@dataclass(slots=True)
class Succession:
    """The heirs in one stripe.

    Args:
        heirs: parent -> (child, heir of that child).
        adopted: heir -> other relays below its parent that it serves in its parent's place.
        guardians: heir -> the parent of its parent.
    """

    heirs: dict[PeerId, list[tuple[PeerId, PeerId]]] = field(default_factory=dict)
    adopted: dict[PeerId, list[PeerId]] = field(default_factory=dict)
    guardians: dict[PeerId, PeerId] = field(default_factory=dict)


def find_heirs(children: Mapping[PeerId, Sequence[PeerId]], by_id: Mapping[PeerId, RelayNode]) -> Succession:
    """Return the heirs of all relays of one stripe that have relays below them.

    Args:
        children: parent -> the members to which it sends the stripe.
    """
    found = Succession()
    for grandparent, ones in children.items():
        for parent in ones:
            relays = [one for one in children.get(parent, ()) if one in children]
            if relays:
                _appoint(found, grandparent, parent, relays, children, by_id)
    return found


def _appoint(
    found: Succession,
    grandparent: PeerId,
    parent: PeerId,
    relays: Sequence[PeerId],
    children: Mapping[PeerId, Sequence[PeerId]],
    by_id: Mapping[PeerId, RelayNode],
) -> None:
    able = [one for one in relays if _linked(by_id[grandparent], by_id[one])]
    heirs = sorted(able, key=lambda one: (-len(children[one]), one))[:_HEIRS_MAX]
    others = [one for one in relays if one not in heirs]
    for turn, other in enumerate(others):
        willing = [one for one in heirs if _linked(by_id[one], by_id[other])]
        if willing:
            found.adopted.setdefault(willing[turn % len(willing)], []).append(other)
    for heir in heirs:
        found.heirs.setdefault(grandparent, []).append((parent, heir))
        found.guardians[heir] = grandparent


def _linked(one: RelayNode, other: RelayNode) -> bool:
    return one.reaches(other) and other.reaches(one)
