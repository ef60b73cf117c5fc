"""Pairs of peers between which a hole punch failed, and classes between which it succeeds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.reach import failed_pairs
from coordinator.core.reach.failed_pairs import FIRST_PAUSE_S, PAUSE_MAX_S, FailedPairs, pair_of
from coordinator.core.reach.holes import (
    CLASSES,
    NAT_KINDS,
    can_punch,
    can_punch_over_ipv4,
    classes_within,
    hole_class,
    lets_in,
)
from peer.reachability.nat_kind import NatKind
from rollcast.wire.ids import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def test_a_pair_pauses_for_longer_each_time() -> None:
    pairs = FailedPairs()
    pairs.failed(B, A, 0.0)
    assert pairs.of(A) == {B}
    assert pairs.of(B) == {A}
    assert pairs.of(C) == frozenset()
    assert len(pairs) == 1
    assert pairs.pause_left_s(A, B, 1.0) == FIRST_PAUSE_S - 1.0
    assert not pairs.tick(FIRST_PAUSE_S - 1.0)
    assert pairs.tick(FIRST_PAUSE_S)
    assert pairs.of(A) == frozenset()
    assert len(pairs) == 0
    pairs.failed(A, B, FIRST_PAUSE_S + 1.0)
    assert pairs.pause_left_s(A, B, FIRST_PAUSE_S + 1.0) == 2 * FIRST_PAUSE_S


def test_one_failure_reported_by_both_ends_counts_once() -> None:
    pairs = FailedPairs()
    pairs.failed(A, B, 0.0)
    pairs.failed(B, A, 1.0)
    assert pairs.pause_left_s(A, B, 1.0) == FIRST_PAUSE_S - 1.0


def test_success_and_time_clear_a_pair() -> None:
    pairs = FailedPairs()
    pairs.failed(A, B, 0.0)
    assert pairs.succeeded(B, A)
    assert not pairs.succeeded(B, A)
    assert pairs.of(A) == frozenset()
    pairs.failed(A, B, 0.0)
    pairs.tick(FIRST_PAUSE_S)
    assert not pairs.tick(2 * FIRST_PAUSE_S)  # forgotten by now, and free already
    pairs.failed(A, B, 2 * FIRST_PAUSE_S)
    assert pairs.pause_left_s(A, B, 2 * FIRST_PAUSE_S) == FIRST_PAUSE_S


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 1e4), st.booleans()), max_size=30))
def test_pauses_are_the_same_from_both_sides(steps: list[tuple[int, int, float, bool]]) -> None:
    pairs, now = FailedPairs(), 0.0
    for one, other, wait_s, fails in steps:
        now += wait_s
        pairs.tick(now)
        if one != other:
            ends = (PeerId(str(one)), PeerId(str(other)))
            if fails:
                pairs.failed(*ends, now)
                assert 0 < pairs.pause_left_s(*ends, now) <= PAUSE_MAX_S
            elif wait_s < 5e3:
                pairs.succeeded(*ends)
            else:
                pairs.forgive(ends[0])
                assert not pairs.of(ends[0])
        assert {pair_of(a, b) for a, ones in pairs._partners.items() for b in ones} == set(pairs._failures)
        for a in map(PeerId, "0123"):
            for b in pairs.of(a):
                assert a in pairs.of(b)
                assert pairs.pause_left_s(a, b, now) > 0


def test_the_oldest_is_discarded_when_there_are_too_many() -> None:
    pairs = FailedPairs()
    for number in range(failed_pairs._REMEMBERED_MOST + 1):
        pairs.failed(A, PeerId(f"p{number}"), 0.0)
    assert PeerId("p0") not in pairs.of(A)
    assert len(pairs) == failed_pairs._REMEMBERED_MOST


def test_failures_of_a_member_that_moved_are_discarded() -> None:
    pairs, c = FailedPairs(), PeerId("c")
    pairs.failed(A, B, 0.0)
    pairs.failed(A, c, 0.0)
    pairs.failed(B, c, 0.0)
    pairs.forgive(A)
    assert not pairs.of(A)
    assert (pairs.of(B), pairs.of(c)) == (frozenset({c}), frozenset({B}))
    assert pairs.pause_left_s(A, B, 1.0) == 0.0
    pairs.failed(A, B, 1.0)
    assert pairs.pause_left_s(A, B, 1.0) == FIRST_PAUSE_S, "and it does not count any more"


#: What `python -m bench holes` finds between real routers.
THROUGH = {
    ("full-cone", "full-cone"),
    ("full-cone", "port-restricted"),
    ("full-cone", "symmetric"),
    ("port-restricted", "port-restricted"),
}


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.combinations_with_replacement(("full-cone", "port-restricted", "symmetric"), 2))
)
def test_the_table_is_what_real_routers_do(one: str, other: str) -> None:
    a, b = (hole_class(nat, "192.0.2.1:7") for nat in (one, other))
    assert can_punch(a, b) == can_punch(b, a) == ((one, other) in THROUGH)


def test_a_member_without_a_known_port_can_at_most_dial_outwards() -> None:
    assert hole_class("port-restricted", "") == hole_class("full-cone", "") == hole_class("unknown", "1.2.3.4:5") == 0
    assert hole_class("symmetric", "") == 1
    assert can_punch(hole_class("symmetric", ""), hole_class("full-cone", "192.0.2.1:7"))


def test_a_class_reaches_what_the_classes_within_it_reach() -> None:
    for hole in range(CLASSES):
        for one in classes_within(hole):
            assert all(can_punch(hole, other) for other in range(CLASSES) if can_punch(one, other))


@pytest.mark.parametrize("nat", NAT_KINDS)
@pytest.mark.parametrize("other_nat", NAT_KINDS)
def test_over_ipv6_no_router_is_in_the_way(nat: str, other_nat: str) -> None:
    over_ipv6 = "[2001:db8::1]:7"
    one, other = hole_class(nat, "", over_ipv6), hole_class(other_nat, "", over_ipv6)
    assert can_punch(one, other)
    assert lets_in(one)
    assert not can_punch_over_ipv4(one, other)
    assert not can_punch(one, hole_class(other_nat, "")), "both ends need it"
    assert 0 <= one < CLASSES


def test_every_kind_that_a_peer_finds_out_is_known() -> None:
    assert set(NAT_KINDS) == set(NatKind.__args__)  # type: ignore[attr-defined]
