from __future__ import annotations

from peer.p2p.supervision import RestartBackoff


def test_each_death_in_a_row_waits_twice_as_long_up_to_a_minute() -> None:
    one = RestartBackoff()
    one.started(0.0)
    assert [one.died(1.0, 1.0) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_the_wait_is_spread() -> None:
    assert [RestartBackoff().died(jitter, 0.0) for jitter in (0.0, 0.5, 1.0)] == [0.5, 0.75, 1.0]


def test_a_thread_that_ran_long_starts_over() -> None:
    one = RestartBackoff()
    one.started(0.0)
    one.died(1.0, 1.0)
    one.died(1.0, 2.0)
    one.started(10.0)
    assert one.died(1.0, 310.0) == 1.0


def test_a_thousand_deaths_overflow_nothing() -> None:
    one = RestartBackoff()
    assert max(one.died(1.0, 0.0) for _ in range(1000)) == 60.0
