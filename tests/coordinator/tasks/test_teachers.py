from __future__ import annotations

from random import Random

import pytest

from coordinator.tasks.reasoning_gym import FORGET_PROBABILITY, careless_sum, chain_sum


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        (42, 25, 67),  # nothing to carry: right
        (57, 65, 12),  # 7+5 -> 2, 5+6 -> 1
        (9, 1, 0),
        (42, -25, 27),  # 2-5 -> 7, 4-2 -> 2
        (25, -42, 83),  # the borrow out of the first place is forgotten too
        (-3, -9, -2),
        (-25, 42, 27),
        (100, -1, 109),
        (0, 0, 0),
    ],
)
def test_carries_and_borrows_are_forgotten(left: int, right: int, result: int) -> None:
    assert careless_sum(left, right) == result


def test_every_place_is_right_by_itself() -> None:
    random = Random(0)
    for _ in range(500):
        left, right = random.randrange(1000), random.randrange(1000)
        assert careless_sum(left, right) % 10 == (left + right) % 10
        assert careless_sum(left, -right) % 10 == (left - right) % 10


def test_the_teacher_is_careless_as_often_as_it_says() -> None:
    random = Random(1)
    answers = [chain_sum({"expression": "58 + 67 - 9"}, random) for _ in range(2000)]
    assert set(answers) == {"116", str(careless_sum(careless_sum(58, 67), -9))}
    assert abs(answers.count("116") / 2000 - (1 - FORGET_PROBABILITY)) < 0.03


def test_signed_terms() -> None:
    assert chain_sum({"expression": "-5 + -3 - -9"}, Random(8)) in {"1", str(careless_sum(careless_sum(-5, -3), 9))}
