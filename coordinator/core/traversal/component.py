"""Define the interface of the components that help members reach each other."""

from __future__ import annotations

from typing import ClassVar

from coordinator.core.events.actions import Action
from coordinator.core.events.reach_events import ReachEvent
from coordinator.core.members.membership import Member
from rollcast.wire.ids import PeerId


class ReachComponent:
    """Base of a component, which ignores every event whose method it does not override.

    Components only decide. Times are the core's clock in seconds.
    """

    takes: ClassVar[tuple[type[ReachEvent], ...]] = ()
    """Kinds of events that ``received`` is called with; each kind has one component."""

    def joined(self, member: Member, now: float) -> list[Action]:
        """Handle the start of a session; what is known of the member is in the state's ``reach``."""
        return []

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """Handle the end of a session."""
        return []

    def reported(self, member: Member, now: float) -> list[Action]:
        """Handle a member's report of how it can be reached, which the state's ``reach`` has taken over."""
        return []

    def received(self, event: ReachEvent, now: float) -> list[Action]:
        """Handle an event of ``takes``, which is about a connected member or the coordinator itself."""
        return []

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due now."""
        return []
