from __future__ import annotations

import pytest

from coordinator.config.tasks import CodeCheck, ExactCheck, MathCheck
from coordinator.tasks.checks.checks import build_checker
from coordinator.tasks.checks.task import Problem


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
