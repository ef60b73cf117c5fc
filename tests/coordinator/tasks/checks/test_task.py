from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
