from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.p2p.circuits.book import RESERVATION_S, Answer, CircuitBook, CircuitCaps
from rollcast.wire.ids import PeerId

A, B, C, D = (PeerId(name) for name in "abcd")


def test_a_circuit_needs_a_reservation_that_has_not_expired() -> None:
    book = CircuitBook(CircuitCaps())
    assert book.connect(A, B, 0.0) is Answer.NO_RESERVATION
    assert book.reserve(B, 0.0) is Answer.OK
    assert book.connect(A, B, 1.0) is Answer.OK
    assert book.connect(A, B, RESERVATION_S) is Answer.NO_RESERVATION
    assert book.reserve(B, RESERVATION_S) is Answer.OK
    assert book.connect(A, B, RESERVATION_S + 1.0) is Answer.OK
    book.left(B)
    assert book.connect(A, B, RESERVATION_S + 2.0) is Answer.NO_RESERVATION


def test_no_source_gets_more_than_half_of_the_circuits() -> None:
    book = CircuitBook(CircuitCaps(circuits_most=4))
    book.reserve(B, 0.0)
    assert [book.connect(A, B, 0.0) for _ in range(3)] == [Answer.OK, Answer.OK, Answer.RESOURCE_LIMIT_EXCEEDED]
    assert [book.connect(C, B, 0.0), book.connect(D, B, 0.0)] == [Answer.OK, Answer.OK]
    assert book.connect(PeerId("e"), B, 0.0) is Answer.RESOURCE_LIMIT_EXCEEDED
    book.ended(A)
    assert book.connect(PeerId("e"), B, 0.0) is Answer.OK


def test_reservations_are_bounded_and_holders_can_renew() -> None:
    book = CircuitBook(CircuitCaps(circuits_most=1))
    answers = [book.reserve(PeerId(str(number)), 0.0) for number in range(5)]
    assert answers == [Answer.OK] * 4 + [Answer.RESERVATION_REFUSED]
    assert book.reserve(PeerId("0"), 1.0) is Answer.OK


def test_a_closed_book_grants_nothing() -> None:
    book = CircuitBook(CircuitCaps())
    book.reserve(B, 0.0)
    book.open = False
    assert book.reserve(C, 0.0) is Answer.RESERVATION_REFUSED
    assert book.connect(A, B, 0.0) is Answer.RESOURCE_LIMIT_EXCEEDED


@given(st.lists(st.tuples(st.sampled_from(["reserve", "connect", "ended", "left"]), st.integers(0, 4)), max_size=60))
def test_open_circuits_never_exceed_the_caps(steps: list[tuple[str, int]]) -> None:
    book = CircuitBook(CircuitCaps(circuits_most=2))
    open_of: list[PeerId] = []
    for now, (what, number) in enumerate(steps):
        peer = PeerId(str(number))
        match what:
            case "reserve":
                book.reserve(peer, now)
            case "left":
                book.left(peer)
            case "connect" if book.connect(peer, PeerId("0"), now) is Answer.OK:
                open_of.append(peer)
            case "ended" if peer in open_of:
                open_of.remove(peer)
                book.ended(peer)
        assert book.circuits == len(open_of) <= 2
        assert book.reservations <= book.caps.reservations_most
