"""What every concern of reaching each other offers to the core."""

from __future__ import annotations

from typing import ClassVar

from coordinator.core.events.actions import Action
from coordinator.core.events.reach_events import ReachEvent
from coordinator.core.members.membership import Member
from rollcast.wire.ids import PeerId


class ReachPart:
    """One concern, which does nothing about what it does not override. Decisions only: times are the core's clock in
    seconds.
    """

    takes: ClassVar[tuple[type[ReachEvent], ...]] = ()
    """Events that ``received`` is called with; each kind has one part."""

    def joined(self, member: Member, now: float) -> list[Action]:
        """A session was opened; what is known of the member is in the state's ``reach``."""
        return []

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """A session ended."""
        return []

    def told(self, member: Member, now: float) -> list[Action]:
        """A member told how it can be reached; the state's ``reach`` has it."""
        return []

    def received(self, event: ReachEvent, now: float) -> list[Action]:
        """One of ``takes``; of a member that is here, unless the coordinator itself is meant."""
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed."""
        return []
