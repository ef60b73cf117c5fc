"""Route events to the components that help members reach each other, and plan again when reachability changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.core.decisions.broadcasts import Broadcasts
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note
from coordinator.core.events.reach_events import ReachabilityTold, ReachEvent, SeenAt
from coordinator.core.members.membership import Member
from coordinator.core.reach.address_book import Reach
from coordinator.core.traversal.bans import Banned
from coordinator.core.traversal.circuits import Circuits
from coordinator.core.traversal.component import ReachComponent
from coordinator.core.traversal.dial_backs import DialBacks
from coordinator.core.traversal.matchmaker import Matchmaker
from coordinator.core.traversal.rate_limit import Turns
from coordinator.core.traversal.rendezvous import Rendezvous
from rollcast.wire.ids import PeerId

# Limits the plans made because of one member's reports: with 10,000 members a plan takes a second.
_CHANGES_AT_ONCE = 8
_CHANGES_EVERY_S = 60.0


class Traversal:
    """All components; each event goes to the one that handles its kind."""

    def __init__(self, state: CoreState, broadcasts: Broadcasts) -> None:
        self._state = state
        self._broadcasts = broadcasts
        self.matchmaker = Matchmaker(state)
        self._circuits = Circuits(state)
        others = (DialBacks(state), self._circuits, Rendezvous(state), Banned(state))
        self._components: Sequence[ReachComponent] = (self.matchmaker, *others)
        self._changes = Turns(at_once=_CHANGES_AT_ONCE, every_s=_CHANGES_EVERY_S)
        self._later_at = float("inf")
        self._by_event = {kind: component for component in self._components for kind in component.takes}

    def joined(self, member: Member, now: float) -> list[Action]:
        """Prepare for a member that opened a session; called before it is planned with."""
        origin = member.role == "origin"
        reach = self._state.reach.joined(member.peer_id, member.host, member.address, is_origin=origin)
        actions = [action for component in self._components for action in component.joined(member, now)]
        return actions + _note_refused(member.peer_id, reach, ())

    def left(self, peer_id: PeerId, now: float) -> list[Action]:
        """End what was in progress with a member whose session ended."""
        self._state.reach.left(peer_id)
        return [action for component in self._components for action in component.left(peer_id, now)]

    def received(self, event: ReachEvent, now: float) -> list[Action]:
        """Handle a member's report, or the result of a check of its address."""
        member = self._state.members.get(event.peer_id)
        if self._state.ended or (event.peer_id and member is None):
            return []
        if isinstance(event, ReachabilityTold):
            assert member is not None
            actions = self._reported(event, member, now)
        elif isinstance(event, SeenAt):
            self._state.reach.seen(event)
            actions = []
        else:
            component = self._by_event.get(type(event))
            actions = [] if component is None else component.received(event, now)
        return actions + self._replanned(now)

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due now, from all components."""
        if self._state.ended:
            return []
        if now >= self._later_at:
            self._later_at = float("inf")
            self._state.reach.mark_changed()
        return [action for component in self._components for action in component.tick(now)] + self._replanned(now)

    def _reported(self, event: ReachabilityTold, member: Member, now: float) -> list[Action]:
        event = replace(event, circuits=self._circuits.credible(event.peer_id, event.circuits))
        reach = self._state.reach.of(event.peer_id)
        refused_before, doubt = reach.refused, self._state.reach.reported(event)
        if self._state.reach.take_changed():
            if self._changes.take(event.peer_id, now):
                self._state.reach.mark_changed()
            else:
                self._later_at = min(self._later_at, now + _CHANGES_EVERY_S)
        actions = _note_refused(event.peer_id, reach, refused_before)
        actions += [Note("punch_address_refused", event.peer_id, doubt)] if doubt else []
        return actions + [action for component in self._components for action in component.reported(member, now)]

    def _replanned(self, now: float) -> list[Action]:
        if self._state.reach.take_changed():
            self._broadcasts.reachability_changed(now)
        return []


def _note_refused(peer_id: PeerId, reach: Reach, before: tuple[str, ...]) -> list[Action]:
    """Record the advertised addresses that are passed on to no other member, if that is news."""
    if not reach.refused or reach.refused == before:
        return []
    seen = f"its session comes from {reach.host or 'an unknown host'}"
    return [
        Note("address_refused", peer_id, f"{', '.join(reach.refused)}: {seen}, and no dial-back has found it there")
    ]
