from __future__ import annotations

from peer.p2p.connection_policy import ConnectionPolicy
from rollcast.wire.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def test_strangers_are_few_and_members_are_not_counted() -> None:
    policy = ConnectionPolicy(strangers_most=2)
    policy.expect([A])
    assert [policy.judge(B, strangers, 0.0) for strangers in (0, 1, 2)] == ["stranger", "stranger", "refused"]
    assert policy.judge(A, 99, 0.0) == "member"
    policy.expect([])
    assert policy.judge(A, 99, 0.0) == "refused"


def test_a_peer_that_showed_a_certificate_stays_a_member() -> None:
    policy = ConnectionPolicy()
    policy.showed(B)
    policy.expect([A])
    assert policy.is_member(B)


def test_a_peer_with_an_invalid_certificate_is_refused_for_a_while() -> None:
    policy = ConnectionPolicy()
    policy.refuse(B, 10.0)
    assert policy.judge(B, 0, 11.0) == "refused"
    assert (policy.is_refused(B, 11.0), policy.is_refused(A, 11.0), policy.is_refused(B, 70.0)) == (True, False, False)
    assert policy.judge(B, 0, 70.0) == "stranger"
    policy.showed(B)
    assert policy.judge(B, 0, 11.0) == "member"


def test_a_banned_peer_is_no_member_whatever_it_shows() -> None:
    policy = ConnectionPolicy()
    policy.showed(A)
    policy.expect([B])
    policy.keep_out(frozenset({A, B}))
    assert not policy.is_member(A)
    assert (policy.judge(A, 0, 1.0), policy.judge(B, 0, 1.0)) == ("refused", "refused")
    policy.keep_out(frozenset({A}))
    assert policy.judge(B, 0, 1.0) == "member"


def test_the_state_is_bounded() -> None:
    policy = ConnectionPolicy()
    for number in range(5000):
        policy.showed(PeerId(f"s{number}"))
        policy.refuse(PeerId(f"r{number}"), 0.0)
    assert not policy.is_member(PeerId("s0"))
    assert policy.is_member(PeerId("s4999"))
    assert policy.judge(PeerId("r0"), 0, 1.0) == "stranger"
