from __future__ import annotations

import pytest

from coordinator.core.leases.groups import Attempt, Finished, Group, slot_seed
from coordinator.core.leases.lease_book import LeaseBook
from rollcast.wire.ids import GroupId, LeaseId, PeerId, RolloutId, Version
from tests.coordinator.core_world import prompt

A, B = PeerId("a"), PeerId("b")


def book(**changes: int) -> LeaseBook:
    return LeaseBook(run_seed=7, samples_per_group=3, finished_kept=changes.get("finished_kept", 100))


def filled(leases: LeaseBook, group: Group, attempt: Attempt, rollout_id: int, version: int = 0) -> None:
    leases.fill(attempt, RolloutId(rollout_id), Version(version), Version(version))
    leases.mark_stored(RolloutId(rollout_id))
    leases.mark_scored(RolloutId(rollout_id))
    leases.validate()


def test_a_seed_depends_on_run_group_and_sample_and_has_64_bits() -> None:
    seeds = {slot_seed(run, GroupId(group), sample) for run in (1, 2**63 - 1) for group in (1, 2) for sample in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert slot_seed(1, GroupId(2), 3) == slot_seed(1, GroupId(2), 3) == 0x36F41223BB3FDC0C


def test_a_lease_is_a_slice_and_the_rest_stays_vacant() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    attempts = leases.issue(group, [0, 1], A, deadline=10.0)
    leases.validate()
    assert [attempt.key for attempt in attempts] == [(1, 0), (1, 1)]
    assert leases.open_groups(9) == [(0, group)]
    assert leases.open_slots(group) == [2]
    leases.issue(group, [2], B, deadline=10.0)
    assert leases.open_groups(9) == []
    assert (leases.held_count(A), leases.held_count(B), leases.live_count) == (2, 1, 3)


def test_a_closed_attempt_frees_its_slot_for_a_higher_token_and_the_same_seed() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    first = leases.issue(group, [0, 1, 2], A, deadline=10.0)
    leases.close(first[1])
    leases.validate()
    assert (leases.open_groups(9), leases.open_slots(group)) == ([(0, group)], [1])
    assert leases.finished(first[1].key) == Finished(A, group.group_id, stored=False)
    (second,) = leases.issue(group, [1], B, deadline=20.0)
    assert second.fencing_token > first[1].fencing_token


def test_expiry_finds_what_is_due_and_nothing_else() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    early = leases.issue(group, [0], A, deadline=10.0)
    leases.issue(group, [1], A, deadline=11.0)
    assert leases.expired(9.9) == []
    assert leases.expired(10.0) == early


def test_two_live_attempts_at_most_and_the_first_rollout_wins() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    (first,) = leases.issue(group, [0], A, deadline=10.0)
    (second,) = leases.issue(group, [0], B, deadline=10.0)
    with pytest.raises(ValueError, match="slot 0 of group 1 cannot be issued"):
        leases.issue(group, [0], A, deadline=10.0)
    assert leases.fill(second, RolloutId(1), Version(0), Version(0)) == [first]
    leases.close(first)
    leases.validate()
    assert leases.slot_is_filled(group.group_id, 0)
    assert leases.open_slots(group) == [1, 2]


def test_a_group_is_ready_when_every_rollout_is_scored() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    attempts = leases.issue(group, [0, 1, 2], A, deadline=10.0)
    for number, attempt in enumerate(attempts, start=1):
        assert not group.ready
        filled(leases, group, attempt, number, version=4 - number)
    assert leases.ready_groups() == [group]
    assert group.oldest_version == 1
    assert not leases.mark_scored(RolloutId(1))  # once only
    assert leases.filling_of(attempts[0].key) is not None
    leases.remove(group)
    leases.validate()
    assert (len(leases), leases.ready_count, leases.unscored) == (0, 0, 0)
    assert leases.finished(attempts[0].key) == Finished(A, group.group_id, stored=True)
    assert leases.mark_stored(RolloutId(1)) is None
    assert not leases.mark_scored(RolloutId(1))


def test_a_score_before_the_store_does_not_count() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    (attempt,) = leases.issue(group, [0], A, deadline=10.0)
    leases.fill(attempt, RolloutId(1), Version(0), Version(0))
    assert not leases.mark_scored(RolloutId(1))
    assert group.scored == 0


def test_a_group_with_work_under_way_cannot_be_removed() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    leases.issue(group, [0], A, deadline=10.0)
    with pytest.raises(ValueError, match="still has live attempts"):
        leases.remove(group)


def test_positions_are_by_age_among_open_and_ready_groups() -> None:
    leases = book()
    groups = [leases.open_group(prompt(number)) for number in range(3)]
    assert [leases.position(group) for group in groups] == [0, 1, 2]
    leases.remove(groups[0])
    assert [leases.position(group) for group in groups[1:]] == [0, 1]


def test_finished_attempts_are_remembered_up_to_a_bound() -> None:
    leases = book(finished_kept=5)
    group = leases.open_group(prompt(0))
    for _ in range(20):
        (attempt,) = leases.issue(group, [0], A, deadline=10.0)
        leases.close(attempt)
        leases.validate()
    assert leases.finished((LeaseId(15), 0)) is None
    assert leases.finished((LeaseId(16), 0)) is not None


def test_ids_go_on_after_a_restart() -> None:
    leases = LeaseBook(run_seed=7, samples_per_group=1, finished_kept=10, last_group=41, ids_before=99)
    group = leases.open_group(prompt(0))
    (attempt,) = leases.issue(group, [0], A, deadline=1.0)
    assert (group.group_id, attempt.lease_id, attempt.fencing_token) == (42, 100, 100)
