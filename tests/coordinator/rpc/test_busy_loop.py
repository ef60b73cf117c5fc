"""Test that a busy loop pauses between its turns, and no other one does."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from coordinator.rpc.busy_loop import PAUSE_S, WINDOW_S, GatheringSelector, Load, new_loop


class Clock:
    """A clock that moves when something takes time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


def load_after(turns: int, *, busy_share: float, was_high: bool = False) -> bool:
    """Return whether the load is high after a window of so many turns."""
    load = Load(0.0)
    load.is_high = was_high
    for turn in range(1, turns + 1):
        load.turned((1.0 - busy_share) * WINDOW_S / turns, WINDOW_S * turn / turns)
    return load.is_high


def test_a_loop_is_busy_with_many_turns_that_take_much_of_the_time() -> None:
    assert load_after(30, busy_share=0.3)
    assert not load_after(30, busy_share=0.2)
    assert not load_after(20, busy_share=0.9), "few turns, each of which does much"
    assert load_after(30, busy_share=0.15, was_high=True), "the pause itself makes it less busy"
    assert not load_after(30, busy_share=0.05, was_high=True)


@pytest.fixture
def readable() -> Iterator[tuple[GatheringSelector, Clock]]:
    """Yield a selector with one socket that is always readable."""
    clock = Clock()
    selector = GatheringSelector(clock, clock.pause)
    one, other = socket.socketpair()
    with one, other, selector:
        other.send(b"x")
        selector.register(one, 1)
        yield selector, clock


def turn(selector: GatheringSelector, clock: Clock, timeout: float | None, *, takes_s: float) -> None:
    assert selector.select(timeout)
    clock.now += takes_s


def test_only_a_busy_loop_without_other_work_pauses(readable: tuple[GatheringSelector, Clock]) -> None:
    selector, clock = readable
    for _ in range(200):
        turn(selector, clock, None, takes_s=0.001)
    assert clock.pauses, "it is busy all the time, 1,000 times a second"
    assert clock.pauses[-1] == pytest.approx(PAUSE_S - 0.001)
    clock.pauses.clear()
    turn(selector, clock, 0.0, takes_s=0.001)
    assert clock.pauses == []
    turn(selector, clock, 0.0005, takes_s=2 * PAUSE_S)
    assert clock.pauses == [pytest.approx(0.0005)], "a timer is due before"
    turn(selector, clock, None, takes_s=0.001)
    assert len(clock.pauses) == 1, "the turn before took longer than the pause"


def test_a_quiet_loop_does_not_pause(readable: tuple[GatheringSelector, Clock]) -> None:
    selector, clock = readable
    for _ in range(100):
        turn(selector, clock, None, takes_s=0.01)
    assert clock.pauses == []


def test_the_loop_runs_what_it_is_given() -> None:
    loop = new_loop()
    try:
        assert loop.run_until_complete(loop.run_in_executor(None, lambda: 7)) == 7
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
