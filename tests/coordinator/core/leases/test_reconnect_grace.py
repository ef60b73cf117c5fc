from __future__ import annotations

from coordinator.core.leases.groups import AttemptKey
from coordinator.core.leases.reconnect_grace import ReconnectGrace
from rollcast.wire.ids import LeaseId, PeerId

A, B = PeerId("a"), PeerId("b")


def key(lease: int, index: int = 0) -> AttemptKey:
    return (LeaseId(lease), index)


def test_attempts_are_lost_after_the_grace_and_found_again() -> None:
    away = ReconnectGrace()
    away.left(A, [key(1), key(2)], until=3.0)
    assert away.due(2.9) == set()
    assert away.due(3.0) == away.lost == {key(1), key(2)}
    assert away.due(9.0) == set()
    assert away.came_back(A, [key(1), key(2)]) == {key(1), key(2)}
    assert away.lost == set()
    assert away.earlier == {A: {key(1), key(2)}}


def test_who_is_back_within_the_grace_lost_nothing() -> None:
    away = ReconnectGrace()
    away.left(A, [key(1)], until=3.0)
    assert away.came_back(A, [key(1)]) == set()
    assert away.due(9.0) == set()


def test_attempts_that_end_meanwhile_are_forgotten() -> None:
    away = ReconnectGrace()
    away.left(A, [key(1), key(2)], until=3.0)
    away.ended(A, key(1))
    assert away.due(3.0) == {key(2)}
    away.ended(A, key(2))
    away.validate({})
    away.came_back(B, [key(3), key(4)])
    away.ended(B, key(9))  # of its present session
    assert away.earlier == {B: {key(3), key(4)}}
    away.ended(B, key(3))
    away.ended(B, key(4))
    away.validate({})


def test_what_is_doubted_after_a_return_is_lost_once_more() -> None:
    away = ReconnectGrace()
    away.came_back(A, [key(1)])
    away.left(A, [key(1)], until=5.0)
    assert away.due(5.0) == {key(1)}
    away.left(A, [key(1), key(2)], until=8.0)
    assert away.due(8.0) == {key(2)}, "the other one is lost already"
    away.validate({A: {key(1): None, key(2): None}})
