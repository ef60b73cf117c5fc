"""Test the order of leases by age, and the states of their slots."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from peer.worker.core.lease_book import LeaseBook
from rollcast.wire.ids import LeaseId, Version
from rollcast.wire.rollouts import LeaseGrant
from tests.peer.worker.core.worker_samples import grant, key, work


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
    assert book.next_expiry_s() == math.inf


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


def test_leases_that_are_given_up_are_discarded() -> None:
    book = book_of(grant(1, 3), grant(2, 1))
    book.take(key(0), 1)
    assert book.give_up([LeaseId(1), LeaseId(7)]) == 3
    assert book.generated(LeaseId(1), 0) is None
    assert book.ids_where(lambda lease: True) == (2,)


def test_the_running_count_equals_the_slots_of_the_leases() -> None:
    book, random, now = LeaseBook(), Random(7), 0.0
    for number in range(1, 300):
        now += random.random()
        match random.randrange(5):
            case 0:
                book.add(grant(number, random.randint(1, 3), deadline_s=random.uniform(1.0, 9.0)), now)
            case 1:
                for item in book.take(key(0), 2):
                    if random.random() < 0.5:
                        book.generated(item.lease.lease_id, item.slot.sample_index)
            case 2:
                for lease in [lease for lease in book if lease.waiting][:1]:
                    book.skip(lease.grant.lease_id, next(iter(lease.waiting)))
            case 3:
                book.give_up([LeaseId(random.randint(1, number))])
            case _:
                book.expire(now)
        held = list(book)
        assert book.unfinished == sum(lease.unfinished for lease in held)
        times = [lease.expires_s if lease.waiting else lease.gone_s for lease in held]
        assert book.next_expiry_s() == min(times, default=math.inf)


def test_a_lease_waits_for_the_version_that_its_peer_used_before() -> None:
    """Else a restarted peer would answer with an older one, and be refused."""
    lease = replace(grant(1), oldest_own_version=Version(3))
    book = book_of(lease)
    assert book.servable(key(2)) == []
    assert book.why_not_servable(key(2)) == "1 leases need version 3 or newer; version 2 is active"
    assert book.take(key(3), 9) == work(lease)
