"""What every concern of reaching each other offers to the core."""

from __future__ import annotations

from typing import Protocol

from coordinator.actions import Action
from coordinator.membership import Member
from coordinator.reach.events import ReachEvent
from rollcast.wire.ids import PeerId


class ReachPart(Protocol):
    """One concern. Decisions only: times are the core's clock in seconds."""

    @property
    def takes(self) -> tuple[type[ReachEvent], ...]:
        """Events that ``received`` is called with; each kind has one part."""

    def joined(self, member: Member, now: float) -> list[Action]:
        """A session was opened; what is known of the member is in the state's ``reach``."""

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """A session ended."""

    def told(self, member: Member, now: float) -> list[Action]:
        """A member told how it can be reached; the state's ``reach`` has it."""

    def received(self, event: ReachEvent, now: float) -> list[Action]:
        """One of ``takes``; of a member that is here, unless the coordinator itself is meant."""

    def tick(self, now: float) -> list[Action]:
        """Time passed."""
