"""Handle work requests, returned leases and lease expiry."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.decisions import evaluating
from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action
from coordinator.core.events.events import LeasesReturned, WorkRequested
from coordinator.core.members.membership import Member
from rollcast.wire.ids import PeerId

_RETRY_S = 1.0  # peers that were too slow for the open work are considered again so often
_RETURNS_FREE = 3  # times in a row that a peer may return leases without a pause
_REST_FIRST_S, _REST_MAX_S = 1.0, 60.0  # without work after one return more, then doubled each time


@dataclass(slots=True)
class _Rest:
    """A peer that returned leases too often; its requests wait."""

    until: float
    free_slots: int = 0


class WorkRequests:
    """Handles work requests, returned leases, deadlines, and peers that stay away. Times are the core's clock."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._retried_at = 0.0
        self._resting: dict[PeerId, _Rest] = {}

    def requested(self, event: WorkRequested, now: float) -> list[Action]:
        """Give work to a peer that requested it."""
        state = self._state
        member = state.members.seen(event.peer_id, now)
        if member is None:
            return []
        rest = self._resting.get(event.peer_id)
        if rest is not None:
            rest.free_slots = event.free_slots
            return []
        state.members.set_free_slots(member, event.free_slots)
        return evaluating.give(state, member, now) + issue(state, now)

    def returned(self, event: LeasesReturned, now: float) -> list[Action]:
        """Close the leases that a peer will not work on; one that keeps returning leases rests longer each time."""
        state = self._state
        member = state.members.seen(event.peer_id, now)
        if member is None:
            return []
        state.members.set_free_slots(member, 0)  # no work until its next request: this was too much for it
        evaluating.returned(state, event.peer_id, event.lease_ids, now)
        leases = {*event.lease_ids}
        returned = [one for one in state.book.held_by(event.peer_id) if one.lease_id in leases]
        if returned:
            self._rest_after_return(member, now)
        return state.close_attempts(returned, "returned", notify_peers=False) + issue(state, now)

    def _rest_after_return(self, member: Member, now: float) -> None:
        reputation = member.reputation
        reputation.returns += 1
        times = reputation.returns - _RETURNS_FREE
        if times > 0:
            rest_s = min(_REST_MAX_S, _REST_FIRST_S * 2.0 ** min(times - 1, 16))
            reputation.resting = f"no new work for {rest_s:g} s: it returned leases {reputation.returns} times in a row"
            self._resting[member.peer_id] = _Rest(now + rest_s)

    def _end_rests(self, now: float) -> None:
        for peer_id in [peer_id for peer_id, rest in self._resting.items() if rest.until <= now]:
            rest = self._resting.pop(peer_id)
            self._state.members.reputation(peer_id).resting = ""
            member = self._state.members.get(peer_id)
            if member is not None:
                self._state.members.set_free_slots(member, rest.free_slots)

    def tick(self, now: float) -> list[Action]:
        """Expire leases, and open the slots of peers that are away for longer than the reconnect grace."""
        state = self._state
        self._end_rests(now)
        if now - self._retried_at >= _RETRY_S:
            self.reconsider_all(now)
        actions = state.close_attempts(state.book.expired(now), "lease_expired", notify_peers=True)
        state.book.lose(now)
        return actions

    def reconsider_all(self, now: float) -> None:
        """Consider again the peers that were set aside: work that was too late for them may be in time now."""
        self._retried_at = now
        self._state.members.changed(self._state.members.shares.take_set_aside())

    def learner_moved(self, now: float) -> None:
        """Measure the learner's pace after a batch was requested or recorded: open work has its turn earlier now."""
        state = self._state
        dropped = state.accounts.dropped
        state.forecast.learner(
            now,
            recorded=state.batches.recorded,
            waits=state.batches.wanted is not None,
            trained=state.accounts.trained,
            stale=dropped["stale"] + dropped["group_stale"],
        )
        self.reconsider_all(now)
