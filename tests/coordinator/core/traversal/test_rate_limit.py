from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.traversal.rate_limit import Turns
from rollcast.wire.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def test_some_at_once_then_one_now_and_then_and_each_for_itself() -> None:
    turns = Turns(at_once=3, every_s=10.0)
    assert [turns.take(A, 5.0) for _ in range(5)] == [True, True, True, False, False]
    assert turns.take(B, 5.0)
    assert not turns.take(A, 14.9)
    assert turns.take(A, 15.0)
    assert not turns.take(A, 15.0)
    assert [turns.take(A, 100.0) for _ in range(4)] == [True, True, True, False]


def test_who_has_rested_is_forgotten() -> None:
    turns = Turns(at_once=2, every_s=1.0)
    for number in range(1000):
        turns.take(PeerId(str(number)), float(number))
    assert len(turns) <= 2


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([A, B])), max_size=60), st.integers(1, 5))
def test_never_more_than_the_rate_allows(steps: list[tuple[float, PeerId]], at_once: int) -> None:
    turns, now, granted = Turns(at_once=at_once, every_s=4.0), 0.0, [0, 0]
    for wait_s, who in steps:
        now += wait_s
        granted[who == B] += turns.take(who, now)
        assert max(granted) <= at_once + now / 4.0 + 1e-6
