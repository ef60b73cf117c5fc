from __future__ import annotations

from coordinator.tasks.checks.math_answers import parse_math, same_math


def test_bare_formulas_are_read_as_a_whole_and_words_are_not() -> None:
    assert same_math(parse_math("2x+1"), parse_math("1 + 2*x"))
    assert not same_math(parse_math("2x+1"), parse_math("1"))
    assert parse_math("Paris") == []
