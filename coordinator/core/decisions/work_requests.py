"""What peers say about the work that they have, and what time does to it."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action
from coordinator.core.events.events import LeasesReturned, WorkRequested
from coordinator.core.members.membership import Member
from rollcast.wire.ids import PeerId

_TRY_AGAIN_S = 1.0  # peers that were too slow for what was open may try again so often
_RETURNS_FREE = 3  # times in a row that a peer may hand leases back
_REST_FIRST_S, _REST_MAX_S = 1.0, 60.0  # without work after one time more, then twice as long each time


@dataclass(slots=True)
class _Rest:
    """A peer that handed leases back too often; what it asks for waits."""

    until: float
    free_slots: int = 0


class WorkRequests:
    """Requests for work, leases handed back, deadlines and peers that do not come back."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._tried_at = 0.0
        self._resting: dict[PeerId, _Rest] = {}

    def requested(self, event: WorkRequested, now: float) -> list[Action]:
        """The peer can take so many more slots."""
        state = self._state
        member = state.members.seen(event.peer_id, now)
        if member is None:
            return []
        rest = self._resting.get(event.peer_id)
        if rest is not None:
            rest.free_slots = event.free_slots
            return []
        state.members.asks(member, event.free_slots)
        return issue(state, now)

    def returned(self, event: LeasesReturned, now: float) -> list[Action]:
        """The peer will not do these leases. One that does nothing else is asked more and more seldom."""
        state = self._state
        member = state.members.seen(event.peer_id, now)
        if member is None:
            return []
        state.members.asks(member, 0)  # until it asks again: it just said that this was too much
        leases = {*event.lease_ids}
        returned = [one for one in state.book.held_by(event.peer_id) if one.lease_id in leases]
        if returned:
            self._hands_back(member, now)
        return state.close_attempts(returned, "returned", tell_peers=False) + issue(state, now)

    def _hands_back(self, member: Member, now: float) -> None:
        standing = member.standing
        standing.returns += 1
        times = standing.returns - _RETURNS_FREE
        if times > 0:
            rest_s = min(_REST_MAX_S, _REST_FIRST_S * 2.0 ** min(times - 1, 16))
            standing.resting = (
                f"given no work for {rest_s:g} s: it handed leases back {standing.returns} times in a row"
            )
            self._resting[member.peer_id] = _Rest(now + rest_s)

    def _end_rests(self, now: float) -> None:
        for peer_id in [peer_id for peer_id, rest in self._resting.items() if rest.until <= now]:
            rest = self._resting.pop(peer_id)
            self._state.members.standing(peer_id).resting = ""
            member = self._state.members.get(peer_id)
            if member is not None:
                self._state.members.asks(member, rest.free_slots)

    def tick(self, now: float) -> list[Action]:
        """Deadlines pass, and what belongs to peers that are away for too long is open to others."""
        state = self._state
        self._end_rests(now)
        if now - self._tried_at >= _TRY_AGAIN_S:
            self.all_may_try(now)
        actions = state.close_attempts(state.book.expired(now), "lease_expired", tell_peers=True)
        state.book.lose(now)
        return actions

    def all_may_try(self, now: float) -> None:
        """What was too late for somebody may be in time now."""
        self._tried_at = now
        self._state.members.changed(self._state.members.shares.all_may_try())

    def learner_moved(self, now: float) -> None:
        """A batch was asked for or recorded: the learner's pace is measured, and what is open has its turn earlier."""
        state = self._state
        dropped = state.accounts.dropped
        state.forecast.learner(
            now,
            recorded=state.batches.recorded,
            waits=state.batches.wanted is not None,
            trained=state.accounts.trained,
            stale=dropped["stale"] + dropped["group_stale"],
        )
        self.all_may_try(now)
