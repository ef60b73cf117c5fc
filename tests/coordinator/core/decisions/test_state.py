from __future__ import annotations

from coordinator.core.decisions.issuing import Pacing
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import CloseAttempt, CloseGroup, RevokeLeases
from rollcast.wire.ids import PeerId, RolloutId, Version
from tests.coordinator.core_world import prompt, settings

A, B = PeerId("a"), PeerId("b")


def test_no_group_is_opened_beyond_those_of_the_last_step() -> None:
    state = CoreState(settings(steps=3, groups_per_step=2))
    pacing = Pacing(state, 0.0)
    assert [pacing.may_open(groups) for groups in (0, 5, 6)] == [True, True, False]
    assert [pacing.step_of_turn(ahead) for ahead in (0, 1, 2, 5)] == [0, 0, 1, 2]


def test_places_of_groups_that_will_come_too_late_are_not_counted_once_the_learner_had_to_wait() -> None:
    state = CoreState(settings(steps=30, groups_per_step=2))
    state.group_yield.ended(8, in_time=False)
    assert Pacing(state, 0.0).step_of_turn(8) == 4
    for step in range(16):
        assert not state.forecast.caution.learner_waited, "a run that just begins has to wait"
        state.forecast.learner(70.0 * step - 10.0, recorded=step, waits=True)
        state.forecast.learner(70.0 * step, recorded=step + 1, waits=False)
    assert state.forecast.caution.learner_waited
    assert Pacing(state, 0.0).step_of_turn(8) == 2


def test_problems_are_in_use_while_they_are_in_stock_or_in_a_group() -> None:
    state = CoreState(settings())
    state.prompts.ask(4)
    state.prompts.supplied([prompt(0), prompt(1)])
    taken = state.prompts.take()
    assert taken is not None
    group = state.book.open_group(taken)
    assert state.problems_in_use() == {"problem-0", "problem-1"}
    state.drop_group(group, [], "group_stale")
    assert state.problems_in_use() == {"problem-1"}


def test_closing_notifies_each_holder_once_and_counts_for_it() -> None:
    state = CoreState(settings(samples_per_group=4))
    group = state.book.open_group(prompt(0))
    attempts = [
        *state.book.issue(group, [0, 1], A, deadline=1.0),
        *state.book.issue(group, [2], B, deadline=1.0),
    ]
    state.accounts.issued = 3
    assert state.close_attempts(attempts, "revoked", notify_peers=True) == [
        CloseAttempt(attempts[0].lease_id, 0, "revoked"),
        CloseAttempt(attempts[0].lease_id, 1, "revoked"),
        CloseAttempt(attempts[2].lease_id, 2, "revoked"),
        RevokeLeases(A, (attempts[0].lease_id,), "revoked"),
        RevokeLeases(B, (attempts[2].lease_id,), "revoked"),
    ]
    assert state.members.reputation(A).dropped == 2
    assert state.accounts.open == 0
    state.validate()


def test_dropping_a_group_closes_its_attempts_and_drops_its_rollouts() -> None:
    state = CoreState(settings())
    group = state.book.open_group(prompt(0))
    attempts = state.book.issue(group, [0, 1], A, deadline=1.0)
    state.accounts.issued = 2
    state.book.fill(attempts[0], RolloutId(1), Version(0), Version(0))
    assert state.drop_group(group, ["stale"], "group_stale") == [
        CloseAttempt(attempts[1].lease_id, 1, "group_stale"),
        RevokeLeases(A, (attempts[1].lease_id,), "group_stale"),
        CloseAttempt(attempts[0].lease_id, 0, "stale"),
        CloseGroup(group.group_id),
    ]
    assert len(state.book) == 0
    state.validate()


def test_a_lease_expires_after_four_times_what_its_peer_needs_for_the_longest_rollout() -> None:
    fixed = CoreState(settings(lease_deadline_s=30.0))
    state = CoreState(settings(lease_deadline_s=30.0, lease_deadline_most_s=1800.0))
    assert fixed.lease_deadline_s(A, 4, 8) == 30.0
    assert state.lease_deadline_s(A, 4, 8) == 1800.0, "no speed is known"
    for one in (fixed, state):
        (attempt,) = one.book.issue(one.book.open_group(prompt(0)), [0], A, deadline=1e9, now=0.0, load=4)
        one.forecast.answered(attempt, 20.0, 8)
    assert fixed.lease_deadline_s(A, 4, 8) == 30.0
    assert state.lease_deadline_s(A, 4, 8) == 80.0
    assert state.lease_deadline_s(A, 1, 8) == 30.0, "the least"
    assert state.lease_deadline_s(A, 4, 800) == 1800.0, "the most"


def test_an_attempt_that_is_overtaken_after_long_costs_what_its_peer_may_hold() -> None:
    """Deadlines of many minutes never pass where second attempts, or the age of the group, come first."""
    state = CoreState(settings(lease_deadline_s=30.0, lease_deadline_most_s=1800.0))
    group = state.book.open_group(prompt(0))
    (attempt,) = state.book.issue(group, [0], A, deadline=1e9, now=0.0, load=1)
    state.forecast.answered(attempt, 20.0, 8)
    earned = state.members.reputation(A).earned
    earned.delivered(16, 64, 20.0)
    state.book.close(attempt)

    def overtaken(issued_at: float, now: float) -> float:
        (idle,) = state.book.issue(group, [0], A, deadline=1e9, now=issued_at, load=1)
        state.now = now
        state.close_attempt(idle, "late_duplicate")
        return earned.slots

    assert overtaken(30.0, 40.0) == 17.0, "no longer than its attempts usually take"
    assert overtaken(10.0, 40.0) == 16.0, "it delivered meanwhile"
    assert overtaken(30.0, 90.0) == 8.0
    assert earned.losses == 1
