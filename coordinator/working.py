"""What peers say about the work that they have, and what time does to it."""

from __future__ import annotations

from coordinator.actions import Action
from coordinator.events import LeasesReturned, WorkRequested
from coordinator.issuing import issue
from coordinator.state import CoreState

_TRY_AGAIN_S = 1.0  # peers that were too slow for what was open may try again so often


class Working:
    """Requests for work, leases handed back, deadlines and peers that do not come back."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._tried_at = 0.0

    def requested(self, event: WorkRequested, now: float) -> list[Action]:
        """The peer can take so many more slots."""
        state = self._state
        member = state.members.seen(event.peer_id, now)
        if member is None:
            return []
        state.members.asks(member, event.free_slots)
        return issue(state, now)

    def returned(self, event: LeasesReturned, now: float) -> list[Action]:
        """The peer will not do these leases."""
        state = self._state
        member = state.members.seen(event.peer_id, now)
        if member is None:
            return []
        state.members.asks(member, 0)  # until it asks again: it just said that this was too much
        leases = {*event.lease_ids}
        returned = [one for one in state.book.held_by(event.peer_id) if one.lease_id in leases]
        return state.close_attempts(returned, "returned", tell_peers=False) + issue(state, now)

    def tick(self, now: float) -> list[Action]:
        """Deadlines pass, and what belongs to peers that are away for too long is open to others."""
        state = self._state
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
