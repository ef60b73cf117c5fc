"""Test how much work a worker requests, and how long a batch that is not full waits."""

from __future__ import annotations

from peer.worker.core.pacing import (
    FULL_BATCH_WAIT_S,
    PARTIALS_PER_SECOND_MAX,
    REST_WAIT_MAX_S,
    BatchPatience,
    PartialPace,
    SlotsAsked,
)


def test_a_first_batch_waits_for_the_leases_of_one_burst() -> None:
    assert BatchPatience().until_s(5.0) == 5.0 + FULL_BATCH_WAIT_S


def test_after_a_batch_the_answer_to_the_last_request_is_waited_for() -> None:
    patience = BatchPatience()
    patience.ended(10.0, 14.0, connected=True)
    assert patience.until_s(11.0) == 14.2
    assert patience.until_s(14.5) == 14.5 + FULL_BATCH_WAIT_S
    patience.ended(20.0, 320.0, connected=True)
    assert patience.until_s(300.0) == 320.0 + REST_WAIT_MAX_S


def test_no_answer_is_waited_for_without_the_coordinator() -> None:
    patience = BatchPatience()
    patience.ended(10.0, 14.0, connected=False)
    assert patience.until_s(11.0) == 11.0 + FULL_BATCH_WAIT_S


def test_no_partials_are_due_without_an_interval() -> None:
    assert not PartialPace().is_due(1e9)


def test_partials_are_due_an_interval_after_the_batch_began() -> None:
    pace = PartialPace(2.0, 10.0)
    pace.began(11.0)
    assert not pace.is_due(12.9)
    assert pace.is_due(13.0)


def test_many_partials_are_sent_less_often() -> None:
    pace = PartialPace(2.0, 0.0)
    pace.sent(10, 2.0)
    assert pace.is_due(4.0)
    pace.sent(200, 4.0)
    assert not pace.is_due(4.0 + 200 / PARTIALS_PER_SECOND_MAX - 0.1)
    assert pace.is_due(4.0 + 200 / PARTIALS_PER_SECOND_MAX)


def test_only_changes_are_requested() -> None:
    asked = SlotsAsked()
    assert not asked.is_news(0), "nobody expects that we can take anything"
    assert asked.is_news(8)
    assert not asked.is_news(8)
    asked.granted(3)
    assert not asked.is_news(5), "it knows what it granted"
    assert asked.is_news(0)
    asked.granted(2)
    assert not asked.is_news(0)


def test_leases_before_the_first_request_change_nothing() -> None:
    asked = SlotsAsked()
    asked.granted(3)
    assert asked.is_news(5)
