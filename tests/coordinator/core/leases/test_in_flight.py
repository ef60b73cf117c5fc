"""Test the index of attempts in flight that the books of leases and of evaluations share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coordinator.core.events.actions import RevokeLeases
from coordinator.core.leases.attempts import AttemptKey
from coordinator.core.leases.in_flight import InFlight, LeaseClock
from rollcast.wire.ids import LeaseId, PeerId


@dataclass(frozen=True, slots=True)
class Attempt:
    peer_id: PeerId
    lease_id: LeaseId
    sample_index: int
    deadline: float = 1.0

    @property
    def key(self) -> AttemptKey:
        return self.lease_id, self.sample_index


A, B = PeerId("a"), PeerId("b")
ATTEMPTS = (
    Attempt(A, LeaseId(1), 0, deadline=1.0),
    Attempt(A, LeaseId(1), 1, deadline=1.0),
    Attempt(B, LeaseId(2), 0, deadline=2.0),
    Attempt(A, LeaseId(3), 0, deadline=3.0),
)


@pytest.fixture
def book() -> InFlight[Attempt]:
    book: InFlight[Attempt] = InFlight()
    for attempt in ATTEMPTS:
        book._begin_live(attempt)
    book._validate_live({attempt.key for attempt in ATTEMPTS})
    return book


def test_attempts_are_found_by_key_by_peer_and_by_lease(book: InFlight[Attempt]) -> None:
    assert book.live_count == 4
    assert book.live_attempt((LeaseId(2), 0)) is ATTEMPTS[2]
    assert book.live_attempt((LeaseId(2), 1)) is None
    assert book.held_by(A) == [ATTEMPTS[0], ATTEMPTS[1], ATTEMPTS[3]]
    assert book.holds_lease(B, LeaseId(2))
    assert not book.holds_lease(A, LeaseId(2))


def test_the_attempts_whose_deadline_passed_are_found_once(book: InFlight[Attempt]) -> None:
    assert book.expired(0.5) == []
    assert book.expired(2.0) == list(ATTEMPTS[:3])
    assert book.expired(2.0) == []


def test_a_lease_with_a_long_deadline_hides_none_that_was_issued_later() -> None:
    book: InFlight[Attempt] = InFlight()
    slow, quick = Attempt(A, LeaseId(1), 0, deadline=1800.0), Attempt(B, LeaseId(2), 0, deadline=30.0)
    for attempt in (slow, quick):
        book._begin_live(attempt)
    assert book.expired(30.0) == [quick]
    book._end_live(quick)
    assert book.expired(1800.0) == [slow]


def test_attempts_that_are_over_do_not_pile_up_until_their_deadlines() -> None:
    book: InFlight[Attempt] = InFlight()
    for number in range(1000):
        attempt = Attempt(A, LeaseId(number), 0, deadline=1800.0)
        book._begin_live(attempt)
        if number:
            book._end_live(attempt)
    assert len(book._deadlines) < 100
    assert [one.lease_id for one in book.expired(1800.0)] == [0]


def test_a_lease_is_revoked_when_none_of_its_slots_continues(book: InFlight[Attempt]) -> None:
    ended = [ATTEMPTS[0], ATTEMPTS[2], ATTEMPTS[3]]
    for attempt in ended:
        book._end_live(attempt)
    assert book.revocations(ended, "revoked") == [
        RevokeLeases(B, (LeaseId(2),), "revoked"),
        RevokeLeases(A, (LeaseId(3),), "revoked"),
    ]
    book._end_live(ATTEMPTS[1])
    assert book.revocations(ATTEMPTS, "revoked") == [
        RevokeLeases(A, (LeaseId(1), LeaseId(3)), "revoked"),
        RevokeLeases(B, (LeaseId(2),), "revoked"),
    ]
    book._validate_live(set())


def test_an_index_that_differs_from_the_attempts_is_noticed(book: InFlight[Attempt]) -> None:
    with pytest.raises(AssertionError, match="live attempts"):
        book._validate_live({ATTEMPTS[0].key})


def test_the_clock_of_leases_stands_still_while_uploads_are_refused() -> None:
    clock = LeaseClock()
    seen = []
    for now, stands in ((10.0, False), (11.0, True), (12.0, True), (15.0, False), (16.0, True)):
        clock.tick(now, stands=stands)
        seen += [clock.at(now), clock.at(now + 0.5)]
    assert seen == [10.0, 10.5, 11.0, 11.0, 11.0, 11.0, 11.0, 11.5, 12.0, 12.0]
    assert seen == sorted(seen)
