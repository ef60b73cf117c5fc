"""Test the share of failures and the pause of the scoring book."""

from __future__ import annotations

from coordinator.core.events.actions import ScoreRollout
from coordinator.core.leases.scoring_book import PROBE_MOST_S, VERDICTS_KEPT, VERDICTS_LEAST, Pending, ScoringBook
from rollcast.wire.ids import RolloutId
from rollcast.wire.token_ids import pack_ids


def pending(book: ScoringBook, number: int) -> Pending:
    book.begin(ScoreRollout(RolloutId(number), "p", pack_ids((1,))), 0.0)
    found = book.get(RolloutId(number))
    assert found is not None
    return found


def test_the_share_covers_the_newest_verdicts() -> None:
    book = ScoringBook(0.5)
    one = pending(book, 1)
    for _ in range(VERDICTS_LEAST - 1):
        book.failed(one, "timeout", "")
    assert book.failed_share == 0.0
    book.failed(one, "timeout", "")
    assert (book.failed_share, book.must_pause()) == (1.0, True)
    for number in range(VERDICTS_KEPT):
        book.scored(RolloutId(number))
    assert (book.failed_share, book.must_pause()) == (0.0, False)


def test_trials_become_rarer() -> None:
    book = ScoringBook(0.5)
    one, now, gaps = pending(book, 1), 0.0, []
    book.failed(one, "unavailable", "no answer")
    book.begin_pause(now)
    for _ in range(9):
        book.set_aside(one)
        assert book.pause is not None
        gaps.append(book.pause.probe_at - now)
        now = book.pause.probe_at
        assert book.probe(now) is one
    assert gaps == sorted(gaps)
    assert gaps[-1] == PROBE_MOST_S
