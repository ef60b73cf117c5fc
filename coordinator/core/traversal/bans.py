"""Send members the identities that the operator banned, so that they keep no links with them either. Pure.

A certificate of the run is valid until it expires, and members show each other nothing else.
"""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, SendToPeer
from coordinator.core.members.membership import Member
from coordinator.core.traversal.component import ReachComponent
from rollcast.wire import limits
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

COMPARE_EVERY_S = 2.0
"""Seconds between two comparisons of all remembered identities: 16,384 take 1 ms."""


class Banned(ReachComponent):
    """Sends members the changes of the banned identities."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._sent: tuple[PeerId, ...] = ()
        self._due_at = float("-inf")

    def joined(self, member: Member, now: float) -> list[Action]:
        """Send a member all banned identities, because its process may not know those of its earlier session."""
        return [_message(member.peer_id, self._sent, ())] if self._sent else []

    def tick(self, now: float) -> list[Action]:
        """Send all members the identities banned and pardoned since the last call."""
        if now < self._due_at:
            return []
        self._due_at = now + COMPARE_EVERY_S
        banned = tuple(self._state.members.banned())[-limits.BANNED_MAX :]
        before, self._sent = self._sent, banned
        new, pardoned = _without(banned, before), _without(before, banned)
        if not (new or pardoned):
            return []
        return [_message(member.peer_id, new, pardoned) for member in self._state.members]


def _without(some: tuple[PeerId, ...], others: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    known = frozenset(others)
    return tuple(one for one in some if one not in known)


def _message(to: PeerId, banned: tuple[PeerId, ...], pardoned: tuple[PeerId, ...]) -> SendToPeer:
    return SendToPeer(to, pb.CoordinatorMessage(banned=pb.Banned(peer_ids=banned, pardoned=pardoned)))
