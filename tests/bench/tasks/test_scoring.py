"""Test that the benchmark of scoring has completions of both outcomes."""

from __future__ import annotations

from bench.tasks.scoring import code_items, math_items
from coordinator.config.checks import MathCheck
from coordinator.tasks.checks.checks import build_checker


def test_half_of_the_mathematical_answers_are_right() -> None:
    checker = build_checker(MathCheck())
    rewards = [checker.check(item.problem, item.completion_text).reward for item in math_items()[:4]]
    assert rewards == [0.0, 1.0, 0.0, 1.0]


def test_no_two_completions_are_alike() -> None:
    for items in (math_items(), code_items()):
        assert len({item.completion_text for item in items}) == len(items)
