"""Test the interface of tasks, and checks of answers that are text or mathematics."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.config.checks import CodeCheck, ExactCheck, MathCheck
from coordinator.tasks.checks.checks import build_checker
from coordinator.tasks.checks.math_answers import parse_math, same_math
from coordinator.tasks.checks.task import Problem, Score, bounded_score
from rollcast.runtime.errors import TaskError

_json = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(st.builds(Problem, st.text(), st.text(), st.text(), st.dictionaries(st.text(), _json)))
@settings(deadline=None, max_examples=50)
def test_a_problem_survives_json(problem: Problem) -> None:
    assert Problem.from_json(problem.to_json()) == problem


@pytest.mark.parametrize("text", ["", "{", "[]", '["a","b","c"]', '["a","b","c",[]]', '["a",1,"c",{}]', "3", '"abcd"'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(TaskError):
        Problem.from_json(text)


def test_rewards_are_bounded() -> None:
    assert bounded_score(0.25) == Score(0.25, False)
    assert bounded_score(1.0) == Score(1.0, True)
    assert bounded_score(7.0) == Score(1.0, True)
    assert bounded_score(-3.0) == Score(0.0, False)
    for reward in (float("nan"), float("inf"), float("-inf")):
        assert bounded_score(reward).reward == 0.0
        assert not bounded_score(reward).exact


@pytest.mark.parametrize(
    ("check", "completion", "right"),
    [
        (ExactCheck(), " Paris\n", True),
        (ExactCheck(), "paris", False),
        (ExactCheck(ignore_case=True), "PARIS", True),
        (ExactCheck(), "I think\nParis", False),
        (ExactCheck(last_line=True), "I think\n Paris \n\n", True),
        (MathCheck(), "Paris", True),
        (MathCheck(), "Pairs", False),
    ],
)
def test_texts(check: ExactCheck | MathCheck, completion: str, right: bool) -> None:
    score = build_checker(check).check(Problem("a:0", "?", "Paris", {}), completion)
    assert (score.reward, score.exact) == (float(right), right)


def test_only_code_starts_processes() -> None:
    assert [build_checker(one).starts_processes for one in (ExactCheck(), MathCheck(), CodeCheck())] == [
        False,
        False,
        True,
    ]


def test_bare_formulas_are_parsed_as_a_whole_and_words_are_not() -> None:
    assert same_math(parse_math("2x+1"), parse_math("1 + 2*x"))
    assert not same_math(parse_math("2x+1"), parse_math("1"))
    assert parse_math("Paris") == []
