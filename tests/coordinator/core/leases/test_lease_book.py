"""Leases: issued, partly returned, kept for a while when a peer loses its session, expired."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from coordinator.core.leases.attempts import Attempt, AttemptKey, Prefix
from coordinator.core.leases.groups import Finished, Group
from coordinator.core.leases.lease_book import LeaseBook
from coordinator.core.leases.partials import Partials, bare, cut, joined
from coordinator.core.leases.reconnect_grace import ReconnectGrace
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Version
from rollcast.wire.rollouts import Segment, tokens_of
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import prompt

A, B = PeerId("a"), PeerId("b")


def book(**changes: int) -> LeaseBook:
    return LeaseBook(run_seed=7, samples_per_group=3, finished_kept=changes.get("finished_kept", 100))


def filled(leases: LeaseBook, group: Group, attempt: Attempt, rollout_id: int, version: int = 0) -> None:
    leases.fill(attempt, RolloutId(rollout_id), Version(version), Version(version))
    leases.mark_stored(RolloutId(rollout_id))
    leases.mark_scored(RolloutId(rollout_id))
    leases.validate()


def test_a_lease_is_a_slice_and_the_rest_stays_vacant() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    attempts = leases.issue(group, [0, 1], A, deadline=10.0)
    leases.validate()
    assert [attempt.key for attempt in attempts] == [(1, 0), (1, 1)]
    assert leases.open_groups.oldest == group.group_id
    assert leases.open_slots(group) == [2]
    leases.issue(group, [2], B, deadline=10.0)
    assert leases.open_groups.oldest is None
    assert (leases.held_count(A), leases.held_count(B), leases.live_count) == (2, 1, 3)


def test_a_closed_attempt_frees_its_slot_for_a_higher_token_and_the_same_seed() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    first = leases.issue(group, [0, 1, 2], A, deadline=10.0)
    leases.close(first[1])
    leases.validate()
    assert (leases.open_groups.oldest, leases.open_slots(group)) == (group.group_id, [1])
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


def test_the_oldest_attempt_is_found_among_the_first_groups_only() -> None:
    leases = book()
    groups = [leases.open_group(prompt(number)) for number in range(3)]
    leases.issue(groups[2], [0], A, deadline=9.0, now=0.0)
    leases.issue(groups[1], [2], A, deadline=10.0, now=1.0)
    together = leases.issue(groups[0], [1, 2], B, deadline=10.0, now=1.0)
    oldest = [leases.oldest_live(count) for count in range(4)]
    assert [one and one.deadline for one in oldest] == [None, 10.0, 10.0, 9.0]
    assert oldest[2] == together[0]


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
    leases.remove([group])
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


def test_a_group_with_live_attempts_cannot_be_removed() -> None:
    leases = book()
    group = leases.open_group(prompt(0))
    leases.issue(group, [0], A, deadline=10.0)
    with pytest.raises(ValueError, match="still has live attempts"):
        leases.remove([group])


def test_positions_are_by_age_among_open_and_ready_groups() -> None:
    leases = book()
    groups = [leases.open_group(prompt(number)) for number in range(3)]
    assert [leases.position(group) for group in groups] == [0, 1, 2]
    leases.remove(groups[:1])
    assert [leases.position(group) for group in groups[1:]] == [0, 1]
    more = [leases.open_group(prompt(number)) for number in range(40)]
    leases.remove(more[5:35])
    leases.validate()
    assert [leases.position(group) for group in (*more[:5], *more[35:])] == list(range(2, 12))


def test_finished_attempts_are_remembered_up_to_a_bound() -> None:
    leases = book(finished_kept=5)
    group = leases.open_group(prompt(0))
    for _ in range(20):
        (attempt,) = leases.issue(group, [0], A, deadline=10.0)
        leases.close(attempt)
        leases.validate()
    assert leases.finished((LeaseId(15), 0)) is None
    assert leases.finished((LeaseId(16), 0)) is not None


def test_ids_continue_after_a_restart() -> None:
    leases = LeaseBook(run_seed=7, samples_per_group=1, finished_kept=10, last_group=41, ids_before=99)
    group = leases.open_group(prompt(0))
    (attempt,) = leases.issue(group, [0], A, deadline=1.0)
    assert (group.group_id, attempt.lease_id, attempt.fencing_token) == (42, 100, 100)


GROUP = GroupId(1)


def segment(*tokens: int, peer: str = "a", version: int = 0) -> Segment:
    return Segment("assistant", Epoch(0), Version(version), PeerId(peer), pack_ids(tokens), b"\1" * len(tokens))


def attempt(lease: int = 1, *, peer: str = "a", prefix: Prefix | None = ()) -> Attempt:
    return Attempt(LeaseId(lease), FencingToken(lease), GROUP, 0, PeerId(peer), deadline=9.0, prefix=prefix)


def known(partials: Partials, *, oldest: int = 0, epoch: int = 0) -> Prefix:
    return partials.prefixes(GROUP, [0], Version(oldest), Epoch(epoch)).get(0, ())


def test_parts_that_follow_each_other_make_one_segment() -> None:
    partials = Partials(100)
    assert partials.add(attempt(), 0, (segment(5, 6),))
    assert partials.add(attempt(), 2, (segment(7), segment(8, version=1)))
    assert known(partials) == (segment(5, 6, 7), segment(8, version=1))
    assert partials.tokens == 4


def test_parts_with_a_gap_are_not_kept_and_repeated_ones_replace() -> None:
    partials = Partials(100)
    assert not partials.add(attempt(), 1, (segment(5),))
    assert partials.add(attempt(), 0, (segment(5, 6, 7),))
    assert not partials.add(attempt(), 4, (segment(9),))
    assert partials.add(attempt(), 1, (segment(8),))
    assert known(partials) == (segment(5, 8),)


def test_a_continued_attempt_keeps_its_prefix_apart_from_its_own_tokens() -> None:
    partials, given_to_it = Partials(100), (segment(5, 6),)
    second = attempt(2, prefix=given_to_it)
    assert not partials.add(second, 1, (segment(9),)), "what was given cannot be changed"
    assert partials.add(second, 2, (segment(7),))
    assert known(partials) == (segment(5, 6), segment(7))


def test_the_longest_useful_prefix_is_passed_on() -> None:
    partials = Partials(100)
    partials.add(attempt(1), 0, (segment(5, 6, 7),))
    partials.add(attempt(2, peer="b"), 0, (segment(5, 6, peer="b", version=2),))
    assert tokens_of(known(partials)) == 3
    assert known(partials, oldest=1) == (segment(5, 6, peer="b", version=2),)
    assert known(partials, oldest=3) == known(partials, epoch=1) == ()
    partials.filled(GROUP, 0)
    assert (known(partials), partials.tokens) == ((), 0)


def test_memory_is_bounded_and_the_longest_unchanged_goes_first() -> None:
    partials = Partials(5)
    for index in range(3):
        one = Attempt(LeaseId(index), FencingToken(1), GROUP, index, PeerId("a"), deadline=9.0)
        partials.add(one, 0, (segment(5, 6),))
        partials.validate()
    assert list(partials.prefixes(GROUP, range(3), Version(0), Epoch(0))) == [1, 2]


def test_the_peer_that_sends_most_evicts_its_own_tokens_and_not_those_of_others() -> None:
    partials = Partials(8)

    def sends(peer: str, index: int, *tokens: int) -> None:
        one = Attempt(LeaseId(index), FencingToken(1), GROUP, index, PeerId(peer), deadline=9.0)
        assert partials.add(one, 0, (segment(*tokens, peer=peer),))
        partials.validate()

    sends("a", 0, 5, 6)
    for index in range(10, 20):
        sends("greedy", index, 7, 8)
    sends("b", 1, 5, 6)  # it has nothing yet: the greedy one makes room
    kept = partials.prefixes(GROUP, range(20), Version(0), Epoch(0))
    assert list(kept) == [0, 1, 18, 19]
    sends("b", 2, 5, 6, 7, 8, 9, 9, 9, 9, 9)
    assert 0 in partials.prefixes(GROUP, range(20), Version(0), Epoch(0))
    partials.discard(PeerId("greedy"))
    partials.validate()


def test_evidence_is_no_part_of_a_prefix() -> None:
    one = Segment("assistant", Epoch(0), Version(0), PeerId("a"), pack_ids((5,)), b"\1", (float("nan"),))
    assert bare((one,)) == (segment(5),)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=6), st.integers(0, 20))
def test_cutting_and_joining_lose_no_token(lengths: Sequence[int], at: int) -> None:
    whole = tuple(segment(*range(length), version=number) for number, length in enumerate(lengths))
    total = tokens_of(whole)
    head = cut(whole, at)
    assert tokens_of(head) == min(at, total)
    tokens = [token for one in whole for token in one.token_ids]
    assert [token for one in head for token in one.token_ids] == tokens[:at]
    assert joined(whole, ()) == joined((), whole) == whole


def key(lease: int, index: int = 0) -> AttemptKey:
    return (LeaseId(lease), index)


def test_attempts_are_lost_after_the_grace_and_found_again() -> None:
    away = ReconnectGrace()
    away.left(A, [key(1), key(2)], until=3.0)
    assert away.due(2.9) == set()
    assert away.due(3.0) == away.lost == {key(1), key(2)}
    assert away.due(9.0) == set()
    assert away.reconnected(A, [key(1), key(2)]) == {key(1), key(2)}
    assert away.lost == set()
    assert away.earlier == {A: {key(1), key(2)}}


def test_a_peer_that_returns_within_the_grace_lost_nothing() -> None:
    away = ReconnectGrace()
    away.left(A, [key(1)], until=3.0)
    assert away.reconnected(A, [key(1)]) == set()
    assert away.due(9.0) == set()


def test_attempts_that_end_meanwhile_are_discarded() -> None:
    away = ReconnectGrace()
    away.left(A, [key(1), key(2)], until=3.0)
    away.ended(A, key(1))
    assert away.due(3.0) == {key(2)}
    away.ended(A, key(2))
    away.validate({})
    away.reconnected(B, [key(3), key(4)])
    away.ended(B, key(9))  # of its present session
    assert away.earlier == {B: {key(3), key(4)}}
    away.ended(B, key(3))
    away.ended(B, key(4))
    away.validate({})


def test_doubted_attempts_are_lost_again_after_a_return() -> None:
    away = ReconnectGrace()
    away.reconnected(A, [key(1)])
    away.left(A, [key(1)], until=5.0)
    assert away.due(5.0) == {key(1)}
    away.left(A, [key(1), key(2)], until=8.0)
    assert away.due(8.0) == {key(2)}, "the other one is lost already"
    away.validate({A: {key(1): None, key(2): None}})
