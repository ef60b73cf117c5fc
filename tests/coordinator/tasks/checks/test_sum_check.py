"""Test sums of checks, format and length."""

from __future__ import annotations

import pytest

from coordinator.config.checks import ExactCheck, FormatCheck, LengthCheck, SumCheck, SumPart
from coordinator.tasks.checks.checks import build_checker
from coordinator.tasks.checks.task import Problem, Score
from rollcast.runtime.errors import TaskError

PROBLEM = Problem("jsonl:0", "?", "Paris", {})
SUM = SumCheck(
    kind="sum",
    parts=[
        SumPart(name="correct", check=ExactCheck(last_line=True)),
        SumPart(name="format", weight=0.5, check=FormatCheck(kind="format", pattern=r"(?s)^<think>.*</think>")),
    ],
)


@pytest.mark.parametrize(
    ("completion", "reward", "exact"),
    [("<think></think>\nParis", 1.5, True), ("Paris", 1.0, False), ("<think></think>\nRome", 0.5, False)],
)
def test_parts_are_weighted_and_kept(completion: str, reward: float, exact: bool) -> None:
    score = build_checker(SUM).check(PROBLEM, completion)
    assert (score.reward, score.exact) == (reward, exact)
    assert score.parts == {"correct": float("Paris" in completion), "format": float("think" in completion)}


async def test_batches_give_the_same() -> None:
    checker = build_checker(SUM)
    assert not checker.together
    assert await checker.check_many([(PROBLEM, "Paris")], 1.0) == [checker.check(PROBLEM, "Paris")]


@pytest.mark.parametrize(("length", "reward"), [(0, 1.0), (10, 1.0), (15, 0.5), (20, 0.0), (90, 0.0)])
def test_long_completions_are_worth_less(length: int, reward: float) -> None:
    checker = build_checker(LengthCheck(kind="length", most=10, zero_at=20))
    assert checker.check(PROBLEM, "x" * length) == Score(reward, reward == 1.0)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(TaskError, match="no regular expression"):
        build_checker(FormatCheck(kind="format", pattern="("))
    with pytest.raises(ValueError, match="must be more than most"):
        LengthCheck(kind="length", most=10, zero_at=10)
    with pytest.raises(ValueError, match="same name"):
        SumCheck(kind="sum", parts=[SUM.parts[0], SUM.parts[0]])
