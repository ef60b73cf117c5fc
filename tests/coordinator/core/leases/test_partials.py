from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from coordinator.core.leases.groups import Attempt, Prefix
from coordinator.core.leases.partials import Partials, bare, cut, joined, tokens_of
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.rollouts import Segment

GROUP = GroupId(1)


def segment(*tokens: int, peer: str = "a", version: int = 0) -> Segment:
    return Segment("assistant", Epoch(0), Version(version), PeerId(peer), tokens, b"\1" * len(tokens))


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


def test_what_does_not_follow_is_not_kept_and_what_is_sent_again_replaces() -> None:
    partials = Partials(100)
    assert not partials.add(attempt(), 1, (segment(5),))
    assert partials.add(attempt(), 0, (segment(5, 6, 7),))
    assert not partials.add(attempt(), 4, (segment(9),))
    assert partials.add(attempt(), 1, (segment(8),))
    assert known(partials) == (segment(5, 8),)


def test_a_continued_attempt_keeps_what_it_was_given_apart_from_its_own() -> None:
    partials, given_to_it = Partials(100), (segment(5, 6),)
    second = attempt(2, prefix=given_to_it)
    assert not partials.add(second, 1, (segment(9),)), "what was given cannot be changed"
    assert partials.add(second, 2, (segment(7),))
    assert known(partials) == (segment(5, 6), segment(7))


def test_the_longest_useful_beginning_is_handed_on() -> None:
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


def test_whoever_sends_most_pushes_out_its_own_and_not_what_others_drew() -> None:
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
    partials.forget(PeerId("greedy"))
    partials.validate()


def test_evidence_is_no_part_of_a_beginning() -> None:
    one = Segment("assistant", Epoch(0), Version(0), PeerId("a"), (5,), b"\1", (float("nan"),))
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
