"""Test when a coordinator counts as silent."""

from __future__ import annotations

from peer.session.silence import TICKS_PER_BEAT, AnswerWatch

INTERVAL_S = 1.0
ANSWER_S = 2.0
PATIENCE_TICKS = int(ANSWER_S / INTERVAL_S * TICKS_PER_BEAT)


def ticks_until_silent(watch: AnswerWatch) -> int:
    for count in range(1, 1000):
        watch.tick()
        if watch.is_silent:
            return count
    raise AssertionError("it never counts as silent")


def test_a_heartbeat_without_an_answer_makes_the_coordinator_silent() -> None:
    watch = AnswerWatch(INTERVAL_S, ANSWER_S)
    watch.heartbeat_sent()
    assert ticks_until_silent(watch) == PATIENCE_TICKS
    watch.message_received()
    assert not watch.is_silent


def test_later_heartbeats_do_not_extend_the_wait_for_the_first_answer() -> None:
    watch = AnswerWatch(INTERVAL_S, ANSWER_S)
    watch.heartbeat_sent()
    for _ in range(PATIENCE_TICKS - 1):
        watch.tick()
        watch.heartbeat_sent()
    assert ticks_until_silent(watch) == 1


def test_nothing_is_overdue_before_a_heartbeat_was_sent() -> None:
    watch = AnswerWatch(INTERVAL_S, ANSWER_S)
    for _ in range(10 * PATIENCE_TICKS):
        watch.tick()
    assert not watch.is_silent
    watch.message_received()
    assert not watch.is_silent


def test_a_coordinator_that_answers_late_is_given_more_time_for_a_while() -> None:
    watch = AnswerWatch(INTERVAL_S, ANSWER_S)
    watch.heartbeat_sent()
    for _ in range(PATIENCE_TICKS - 1):
        watch.tick()
    watch.message_received()
    watch.heartbeat_sent()
    assert ticks_until_silent(watch) == 4 * (PATIENCE_TICKS - 1)
    watch = AnswerWatch(INTERVAL_S, ANSWER_S)
    watch.heartbeat_sent()
    watch.tick()
    for _ in range(100):  # prompt answers
        watch.message_received()
        watch.heartbeat_sent()
    assert ticks_until_silent(watch) == PATIENCE_TICKS
