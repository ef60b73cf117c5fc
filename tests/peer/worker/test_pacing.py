"""What a batch that is not full waits for: a burst's other leases, or the answer to what was asked last."""

from __future__ import annotations

from peer.worker.pacing import FULL_BATCH_WAIT_S, REST_WAIT_MAX_S, BatchPatience


def test_a_first_batch_waits_for_the_leases_of_one_burst() -> None:
    assert BatchPatience().until_s(5.0) == 5.0 + FULL_BATCH_WAIT_S


def test_after_a_batch_the_answer_to_what_was_asked_last_is_waited_for() -> None:
    patience = BatchPatience()
    patience.ended(10.0, 14.0, connected=True)
    assert patience.until_s(11.0) == 14.2
    assert patience.until_s(14.5) == 14.5 + FULL_BATCH_WAIT_S
    patience.ended(20.0, 320.0, connected=True)
    assert patience.until_s(300.0) == 320.0 + REST_WAIT_MAX_S


def test_nobody_answers_while_the_coordinator_is_away() -> None:
    patience = BatchPatience()
    patience.ended(10.0, 14.0, connected=False)
    assert patience.until_s(11.0) == 11.0 + FULL_BATCH_WAIT_S
