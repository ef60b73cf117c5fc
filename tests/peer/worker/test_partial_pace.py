from __future__ import annotations

from peer.worker.pacing import PARTIALS_PER_SECOND_MAX, PartialPace


def test_none_are_due_without_an_interval() -> None:
    assert not PartialPace().is_due(1e9)


def test_they_are_due_an_interval_after_the_batch_began() -> None:
    pace = PartialPace(2.0, 10.0)
    pace.began(11.0)
    assert not pace.is_due(12.9)
    assert pace.is_due(13.0)


def test_many_at_once_are_sent_more_seldom() -> None:
    pace = PartialPace(2.0, 0.0)
    pace.sent(10, 2.0)
    assert pace.is_due(4.0)
    pace.sent(200, 4.0)
    assert not pace.is_due(4.0 + 200 / PARTIALS_PER_SECOND_MAX - 0.1)
    assert pace.is_due(4.0 + 200 / PARTIALS_PER_SECOND_MAX)
