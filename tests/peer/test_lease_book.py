"""Leases by age, and where their slots are."""

from __future__ import annotations

from peer.lease_book import LeaseBook
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import LeaseGrant
from tests.peer.worker_samples import grant, key, work


def book_of(*grants: LeaseGrant, at: float = 0.0) -> LeaseBook:
    book = LeaseBook()
    for lease in grants:
        book.add(lease, at)
    return book


def test_slots_are_taken_oldest_lease_first() -> None:
    first, second = grant(1, 3), grant(2, 3)
    book = book_of(first, second)
    assert book.take(key(0), 4) == work(first) + work(second)[:1]
    assert book.take(key(0), 4) == work(second)[1:]
    assert book.take(key(0), 4) == ()
    assert book.unfinished == 6


def test_leases_that_the_version_cannot_serve_are_passed_over() -> None:
    book = book_of(grant(1, oldest_useful=5), grant(2))
    assert [item.lease.lease_id for item in book.take(key(4), 9)] == [2, 2]
    assert book.servable(key(5, epoch=1)) == []
    assert [item.lease.lease_id for item in book.take(key(5), 9)] == [1, 1]


def test_a_lease_is_over_when_its_last_slot_is_generated() -> None:
    book = book_of(grant(1, 2))
    book.take(key(0), 2)
    assert book.generated(LeaseId(1), 0) is not None
    assert book.generated(LeaseId(1), 0) is None
    assert len(book) == 1
    assert book.generated(LeaseId(1), 1) is not None
    assert len(book) == 0
    assert book.knows(LeaseId(1))


def test_expiry_gives_up_slots_not_begun() -> None:
    book = book_of(grant(1, 3, deadline_s=5.0))
    book.take(key(0), 1)
    assert book.next_expiry_s() == 5.0
    assert book.expire(4.9) == 0
    assert book.expire(5.0) == 2
    assert book.next_expiry_s() == 10.0
    assert book.is_generating(LeaseId(1), 0)
    assert book.generated(LeaseId(1), 0) is not None
    assert book.next_expiry_s() is None


def test_slots_being_generated_expire_one_period_later() -> None:
    book = book_of(grant(1, 3, deadline_s=5.0))
    book.take(key(0), 3)
    assert (book.expire(9.9), book.expire(10.0)) == (0, 3)
    assert book.generated(LeaseId(1), 0) is None


def test_a_slot_may_need_no_generating() -> None:
    book = book_of(grant(1, 2))
    book.skip(LeaseId(1), 0)
    assert [item.slot.sample_index for item in book.take(key(0), 9)] == [1]
    book.generated(LeaseId(1), 1)
    assert book.knows(LeaseId(1))
    assert len(book) == 0


def test_what_is_given_up_is_forgotten() -> None:
    book = book_of(grant(1, 3), grant(2, 1))
    book.take(key(0), 1)
    assert book.give_up([LeaseId(1), LeaseId(7)]) == 3
    assert book.generated(LeaseId(1), 0) is None
    assert book.ids_where(lambda lease: True) == (2,)
