"""Test the book of evaluations: samples are open, in flight, received or scored, and each is scored once."""

from __future__ import annotations

from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationProblem, EvaluationRequested
from coordinator.core.leases.evaluation_book import ENDED_KEPT, GIVEN_UP_KEPT_S, NO_TURNS, Evaluation, EvaluationBook
from rollcast.wire.ids import Epoch, FencingToken, LeaseId, PeerId, Version

A, B = PeerId("a"), PeerId("b")


def asked(version: int = 0, problems: int = 2, samples: int = 2) -> EvaluationRequested:
    key = EvaluationKey("held_out", Version(version), problems, samples, seed=3)
    return EvaluationRequested(key, tuple(EvaluationProblem(100 + one, (5, one)) for one in range(problems)), 60.0)


class Book(EvaluationBook):
    """A book that numbers leases and is validated after each issue."""

    leases = 0

    def give(self, evaluation: Evaluation, room: int, peer: PeerId = A, deadline: float = 30.0) -> None:
        self.leases += 1
        self.issue(
            evaluation,
            evaluation.take(room),
            peer,
            (LeaseId(self.leases), FencingToken(self.leases)),
            deadline,
        )
        self.validate()


def begun(**shape: int) -> tuple[Book, Evaluation]:
    book = Book(accepted_kept=8)
    return book, book.begin(asked(**shape), Epoch(0), 0.0)


def test_a_lease_has_samples_of_one_problem() -> None:
    book, evaluation = begun(problems=2, samples=3)
    book.give(evaluation, 2)
    book.give(evaluation, 9)
    book.give(evaluation, 9)
    taken = [[one.sample for one in book.held_by(A) if one.lease_id == lease] for lease in (1, 2, 3)]
    assert taken == [[(0, 0), (0, 1)], [(0, 2)], [(1, 0), (1, 1), (1, 2)]]
    assert not book.has_open()


def test_every_sample_is_scored_once() -> None:
    book, evaluation = begun(problems=1, samples=2)
    book.give(evaluation, 2)
    for attempt in book.held_by(A):
        assert book.accept(attempt, NO_TURNS) == []
        book.validate()
    key = evaluation.request.key
    assert book.score(key, (0, 0), 0.5, exact=True) is None
    assert book.score(key, (0, 0), 0.5, exact=True) is None  # repeated
    assert book.score(key, (0, 1), 0.25, exact=False) is evaluation
    book.end(evaluation, 9.0)
    assert (evaluation.done, evaluation.exact, evaluation.rewards) == (True, [1], [0.75])
    assert book.under_way() == []
    book.validate()


def test_a_sample_of_a_peer_that_is_away_is_given_to_another_and_the_first_rollout_counts() -> None:
    book, evaluation = begun(problems=1, samples=1)
    book.give(evaluation, 1, A)
    book.left(A)
    assert list(evaluation.open) == [(0, 0)]
    book.give(evaluation, 1, B)
    book.reconnected(A)
    book.left(A)  # no third attempt
    assert not book.has_open()
    (first,), (second,) = book.held_by(A), book.held_by(B)
    assert book.accept(first, NO_TURNS) == [second]
    assert (book.live_count, book.accepted_from(first.key), book.accepted_from(second.key)) == (0, A, None)
    book.validate()


def test_a_peer_that_is_back_before_another_has_its_sample_keeps_it() -> None:
    book, evaluation = begun(problems=1, samples=1)
    book.give(evaluation, 1)
    book.left(A)
    book.reconnected(A)
    assert not book.has_open()
    (attempt,) = book.held_by(A)
    book.left(A)
    book.accept(attempt, NO_TURNS)  # its upload came although its session is lost
    assert not book.has_open()
    book.validate()


def test_attempts_expire_in_order_and_their_samples_come_first() -> None:
    book, evaluation = begun(problems=2, samples=1)
    book.give(evaluation, 1, deadline=30.0)
    assert book.expired(29.9) == []
    (late,) = book.expired(30.0)
    book.close(late)
    assert list(evaluation.open) == [(0, 0), (1, 0)]
    book.validate()


def test_an_evaluation_that_ends_takes_its_attempts_along() -> None:
    book, evaluation = begun(problems=2, samples=1)
    book.give(evaluation, 1)
    assert [one.lease_id for one in book.end(evaluation, 5.0, given_up="no peers")] == [1]
    assert (book.live_count, list(book.peers), evaluation.done) == (0, [], False)
    key = evaluation.request.key
    assert book.score(key, (0, 0), 1.0, exact=True) is None
    book.forget(5.0 + GIVEN_UP_KEPT_S - 0.1)
    assert book.get(key) is evaluation
    book.forget(5.0 + GIVEN_UP_KEPT_S)
    assert book.get(key) is None


def test_the_newest_results_are_kept() -> None:
    book = Book(accepted_kept=8)
    for version in range(ENDED_KEPT + 3):
        book.end(book.begin(asked(version), Epoch(0), 0.0), 1.0)
    assert book.get(asked(2).key) is None
    assert book.get(asked(3).key) is not None
    book.validate()
