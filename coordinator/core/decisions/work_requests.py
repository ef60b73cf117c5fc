"""Handle work requests, returned leases and lease expiry."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.decisions import evaluating
from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note
from coordinator.core.events.events import LeasesReturned, WorkRequested
from coordinator.core.members.membership import Member
from rollcast.wire.ids import PeerId

_RETRY_S = 1.0  # peers that were too slow for the open work are considered again so often
_NEWCOMERS_RETRIED = 1024  # at one time, of those that wait for what newcomers may hold
_RETURNS_FREE = 3  # times in a row that a peer may return leases without a pause
_REST_FIRST_S, _REST_MAX_S = 1.0, 60.0  # without work after one return more, then doubled each time


@dataclass(slots=True)
class _Rest:
    """A peer that returned or lost leases too often; its requests wait."""

    until: float
    free_slots: int = 0
    while_others_work: bool = False  # it ends when no other peer delivers


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
            self._rest(member, now, rest_s, f"it returned leases {reputation.returns} times in a row")

    def _rest_after_losses(self, now: float) -> list[Action]:
        """Give no work for a while to peers whose leases came to nothing again and again."""
        members, actions = self._state.members, list[Action]()
        for peer_id in members.take_lost():
            member, earned = members.get(peer_id), members.reputation(peer_id).earned
            rest_s = earned.rest_s(self._state.settings.lease_deadline_s)
            if member is None or not rest_s or not members.any_works:
                continue
            why = f"its leases came to nothing {earned.losses} times in a row"
            self._rest(member, now, rest_s, why, while_others_work=True)
            actions.append(Note("peer_rests", peer_id, member.reputation.resting))
        return actions

    def _rest(self, member: Member, now: float, rest_s: float, why: str, *, while_others_work: bool = False) -> None:
        member.reputation.resting = f"no new work for {rest_s:g} s: {why}"
        self._resting[member.peer_id] = _Rest(now + rest_s, member.free_slots, while_others_work)
        self._state.members.set_free_slots(member, 0)

    def _end_rests(self, now: float) -> None:
        others_work = self._state.members.any_works
        over = [
            peer_id
            for peer_id, rest in self._resting.items()
            if rest.until <= now or (rest.while_others_work and not others_work)
        ]
        for peer_id in over:
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
        expired = state.book.expired(state.lease_clock.at(now))
        actions = state.close_attempts(expired, "lease_expired", notify_peers=True)
        actions += self._rest_after_losses(now)
        state.book.lose(now)
        return actions

    def reconsider_all(self, now: float) -> None:
        """Consider again the peers that were set aside: work that was too late for them may be in time now."""
        self._retried_at = now
        members = self._state.members
        members.reconsider(members.shares.take_set_aside() + members.take_trial_line(_NEWCOMERS_RETRIED))

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
