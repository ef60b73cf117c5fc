"""bench.longrun.presence: from a session to the next end."""

from __future__ import annotations

from bench.longrun.presence import Presence
from bench.longrun.stalls import Span


def test_a_peer_is_there_from_its_first_session_after_a_start() -> None:
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


def test_a_peer_that_never_had_a_session_was_not_there() -> None:
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
