"""Test how far away holders are asked: from the nearest on, and farther ones as long as they make it faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from peer.relay.core.state.reach import FARTHEST, Reach, distance_class


@pytest.mark.parametrize(
    ("rtt_s", "expected"),
    [(0.0, FARTHEST - 1), (0.0004, 0), (0.005, 0), (0.006, 1), (0.04, 3), (0.08, 4), (0.3, 6), (9.0, FARTHEST - 1)],
)
def test_classes_double_and_an_unknown_round_trip_is_far(rtt_s: float, expected: int) -> None:
    assert distance_class(rtt_s) == expected


class Joiner:
    """A peer that receives at a rate which depends on how far it asks."""

    def __init__(self, rate: Callable[[int], float]) -> None:
        self.reach = Reach()
        self.rate = rate
        self.now = 100.0
        self.chunks = 0.0

    def run(self, classes: Sequence[int], seconds: float) -> list[tuple[int, float]]:
        """Return what was asked, class by class, and for how many seconds."""
        spans: list[tuple[int, float]] = []
        for _ in range(round(seconds / 0.05)):
            most = self.reach.within(classes, int(self.chunks), self.now)
            self.now += 0.05
            self.chunks += 0.05 * self.rate(most)
            before = spans.pop()[1] if spans and spans[-1][0] == most else 0.0
            spans.append((most, before + 0.05))
        return spans


def asked(spans: Sequence[tuple[int, float]]) -> list[int]:
    return [most for most, _ in spans]


def test_farther_holders_are_tried_seldom_where_the_near_ones_fill_the_downlink() -> None:
    joiner = Joiner(lambda _: 400.0)
    spans = joiner.run((0, 4, 8), 60.0)
    assert asked(spans)[:4] == [0, 4, 0, 8]
    assert sum(seconds for most, seconds in spans if most == 0) >= 0.94 * 60.0


def test_all_are_asked_within_seconds_where_each_makes_it_faster() -> None:
    joiner = Joiner(lambda most: {0: 50.0, 4: 100.0, 8: 200.0}[most])
    spans = joiner.run((0, 4, 8), 10.0)
    assert asked(spans) == [0, 4, 8]
    assert sum(seconds for most, seconds in spans if most < 8) <= 3.0


def test_a_class_that_is_of_no_use_does_not_hide_a_farther_one_that_is() -> None:
    joiner = Joiner(lambda most: 300.0 if most == 8 else 100.0)
    assert asked(joiner.run((0, 4, 8), 15.0)) == [0, 4, 0, 8]


def test_nothing_farther_is_tried_while_the_rate_still_rises() -> None:
    joiner = Joiner(lambda _: 100.0)
    joiner.rate = lambda _: 40.0 * 2.0 ** ((joiner.now - 100.0) / 0.5)
    assert asked(joiner.run((0, 4), 2.0)) == [0]


def test_farther_ones_are_tried_at_once_when_the_near_ones_become_slow() -> None:
    joiner = Joiner(lambda _: 400.0)
    joiner.run((0, 4), 20.0)
    joiner.rate = lambda most: 20.0 if most == 0 else 300.0
    spans = joiner.run((0, 4), 10.0)
    assert asked(spans)[-1] == 4
    assert sum(seconds for most, seconds in spans if most == 0) <= 3.0


def test_the_nearest_holder_is_asked_alone_as_soon_as_it_answers_and_others_when_it_leaves() -> None:
    joiner = Joiner(lambda _: 100.0)
    assert asked(joiner.run((8,), 1.0)) == [8]
    assert asked(joiner.run((2, 8), 0.2)) == [2]
    assert asked(joiner.run((5, 8), 0.2)) == [5]


def test_slow_chunks_have_the_time_to_show_a_rate() -> None:
    joiner = Joiner(lambda _: 2.0)
    assert joiner.run((0, 3), 3.5) == [(0, pytest.approx(3.5))]
