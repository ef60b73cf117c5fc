"""Test which times count as stalls, and the times at which each peer was present."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.longrun.presence import Presence
from bench.longrun.stalls import Moment, Span, delays_s, stalls

PUBLISHED = [Moment(10.0, 0), Moment(20.0, 1), Moment(30.0, 2)]


def test_a_stall_lasts_from_the_publication_to_the_next_version_that_is_held() -> None:
    held = [Moment(11.0, 0), Moment(22.0, 1), Moment(37.0, 2)]
    assert stalls(PUBLISHED, held, Span(0.0, 100.0)) == [Span(10.0, 11.0), Span(20.0, 22.0), Span(30.0, 37.0)]
    assert delays_s(PUBLISHED, held, Span(0.0, 100.0)) == [1.0, 2.0, 7.0]


def test_a_version_that_is_skipped_is_no_stall_but_the_time_before_is() -> None:
    assert stalls(PUBLISHED, [Moment(31.0, 2)], Span(0.0, 50.0)) == [Span(10.0, 31.0)]
    assert delays_s(PUBLISHED, [Moment(31.0, 2)], Span(0.0, 50.0)) == [21.0, 11.0, 1.0]


def test_progress_begins_a_new_stall_where_more_is_missing() -> None:
    held = [Moment(35.0, 0), Moment(40.0, 2)]
    assert stalls(PUBLISHED, held, Span(0.0, 50.0)) == [Span(10.0, 35.0), Span(35.0, 40.0)]


def test_only_the_time_in_which_the_peer_was_present_counts() -> None:
    assert stalls(PUBLISHED, [Moment(36.0, 2)], Span(33.0, 50.0)) == [Span(33.0, 36.0)]
    assert stalls(PUBLISHED, [Moment(36.0, 2)], Span(33.0, 35.0)) == [Span(33.0, 35.0)]
    assert stalls(PUBLISHED, [Moment(31.0, 2)], Span(33.0, 50.0)) == []
    assert delays_s(PUBLISHED, [Moment(36.0, 2)], Span(33.0, 50.0)) == []


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), max_size=12), st.floats(0, 50), st.floats(50, 100))
def test_stalls_are_apart_and_within(held: list[tuple[float, int]], begin_s: float, end_s: float) -> None:
    published = [Moment(10.0 * number, number) for number in range(10)]
    up = Span(begin_s, end_s)
    found = stalls(published, [Moment(*one) for one in sorted(held)], up)
    edges = [edge for span in found for edge in (span.from_s, span.to_s)]
    assert edges == sorted(edges)
    assert all(up.from_s <= edge <= up.to_s for edge in edges)
    assert all(span.seconds > 0 for span in found)


def test_a_peer_is_present_from_its_first_session_after_a_start() -> None:
    presence = Presence()
    presence.started(0.0)
    presence.gone(50.0)
    presence.started(60.0)
    assert presence.spans([3.0, 20.0, 64.0], 100.0) == [Span(3.0, 50.0), Span(64.0, 100.0)]


def test_a_frozen_peer_is_back_at_once() -> None:
    presence = Presence()
    presence.started(0.0)
    presence.gone(10.0)
    presence.thawed(30.0)
    assert presence.spans([1.0, 31.0], 100.0) == [Span(1.0, 10.0), Span(30.0, 100.0)]


def test_a_peer_without_a_session_was_never_present() -> None:
    presence = Presence()
    presence.started(0.0)
    presence.gone(10.0)
    presence.started(20.0)
    assert presence.spans([15.0], 100.0) == []


def test_a_session_before_the_end_only_counts_until_then() -> None:
    presence = Presence()
    presence.started(0.0)
    presence.gone(10.0)
    presence.started(11.0)
    presence.gone(12.0)
    presence.started(13.0)
    assert presence.spans([2.0, 20.0], 100.0) == [Span(2.0, 10.0), Span(20.0, 100.0)]
