from __future__ import annotations

from peer.p2p.connection_gate import Guests
from rollcast.wire.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def test_strangers_are_few_and_members_are_not_counted() -> None:
    guests = Guests(strangers_most=2)
    guests.expect([A])
    assert [guests.judge(B, strangers, 0.0) for strangers in (0, 1, 2)] == ["stranger", "stranger", "refused"]
    assert guests.judge(A, 99, 0.0) == "member"
    guests.expect([])
    assert guests.judge(A, 99, 0.0) == "refused"


def test_who_showed_a_certificate_stays_a_member_whatever_is_expected() -> None:
    guests = Guests()
    guests.showed(B)
    guests.expect([A])
    assert guests.is_member(B)


def test_who_showed_another_one_need_not_come_back_for_a_while() -> None:
    guests = Guests()
    guests.refuse(B, 10.0)
    assert guests.judge(B, 0, 11.0) == "refused"
    assert (guests.is_refused(B, 11.0), guests.is_refused(A, 11.0), guests.is_refused(B, 70.0)) == (True, False, False)
    assert guests.judge(B, 0, 70.0) == "stranger"
    guests.showed(B)
    assert guests.judge(B, 0, 11.0) == "member"


def test_who_was_sent_away_is_no_member_whatever_it_shows() -> None:
    guests = Guests()
    guests.showed(A)
    guests.expect([B])
    guests.keep_out(frozenset({A, B}))
    assert not guests.is_member(A)
    assert (guests.judge(A, 0, 1.0), guests.judge(B, 0, 1.0)) == ("refused", "refused")
    guests.keep_out(frozenset({A}))
    assert guests.judge(B, 0, 1.0) == "member"


def test_what_is_remembered_is_bounded() -> None:
    guests = Guests()
    for number in range(5000):
        guests.showed(PeerId(f"s{number}"))
        guests.refuse(PeerId(f"r{number}"), 0.0)
    assert not guests.is_member(PeerId("s0"))
    assert guests.is_member(PeerId("s4999"))
    assert guests.judge(PeerId("r0"), 0, 1.0) == "stranger"
