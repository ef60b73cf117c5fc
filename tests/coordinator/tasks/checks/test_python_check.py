"""Test reward functions that users write: how they are found, called and understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.config.checks import PythonCheck
from coordinator.tasks.checks.python_check import PythonChecker, score_of
from coordinator.tasks.checks.task import Problem, Score, ScoringFailure
from rollcast.runtime.errors import TaskError

PROBLEM = Problem("jsonl:0", "1+1=", "2", {"metadata": {"level": 3}})


def checker(folder: Path, code: str, **settings: Any) -> PythonChecker:
    (folder / "reward.py").write_text(code)
    made = PythonChecker(PythonCheck(kind="python", path=f"{folder}/reward.py:score", **settings))
    made.warm_up()
    return made


def test_it_is_called_with_the_arguments_that_it_names(tmp_path: Path) -> None:
    found = checker(tmp_path, "def score(completion, answer):\n    return float(completion == answer)")
    assert not found.together
    assert found.check(PROBLEM, "2") == Score(1.0, True)
    assert found.check(PROBLEM, "3") == Score(0.0, False)
    code = (
        "def score(prompt, completion, answer, metadata):\n    return {prompt + completion + answer: metadata['level']}"
    )
    assert checker(tmp_path, code).check(PROBLEM, "x").parts == {"1+1=x2": 3.0}
    assert checker(tmp_path, "def score(**given):\n    return len(given)").check(PROBLEM, "x").reward == 4.0


async def test_an_async_function_scores_a_batch_at_once(tmp_path: Path) -> None:
    code = (
        "import asyncio\nmet = asyncio.Event()\n"
        "async def score(completion):\n"
        "    if completion == 'last': met.set()\n"
        "    if completion == 'never': await asyncio.sleep(60)\n"
        "    if completion == 'bad': raise ValueError('oh')\n"
        "    await met.wait()\n    return 1"
    )
    found = checker(tmp_path, code)
    assert found.together
    outcomes = await found.check_many([(PROBLEM, text) for text in ("first", "bad", "never", "last")], 1.0)
    assert (outcomes[0], outcomes[3]) == (Score(1.0, True), Score(1.0, True))
    assert isinstance(outcomes[1], ScoringFailure)
    assert "ValueError: oh" in outcomes[1].detail
    assert isinstance(outcomes[2], ScoringFailure)
    assert outcomes[2].reason == "timeout"


async def test_a_timeout_of_the_functions_own_is_shown_as_the_exception_that_it_is(tmp_path: Path) -> None:
    code = (
        "import asyncio\n"
        "async def score(completion):\n"
        "    if completion == 'slow':\n"
        "        await asyncio.sleep(60)\n"
        "    raise TimeoutError('the database did not answer')\n"
    )
    own, slow = await checker(tmp_path, code).check_many([(PROBLEM, "x"), (PROBLEM, "slow")], 0.2)
    assert isinstance(own, ScoringFailure)
    assert isinstance(slow, ScoringFailure)
    assert (own.reason, slow.reason) == ("exception", "timeout")
    assert "the database did not answer" in own.detail


async def test_a_batch_function_takes_and_returns_lists(tmp_path: Path) -> None:
    code = "def score(prompts, completions):\n    return [len(one) for one in completions]"
    found = checker(tmp_path, code, batch=True)
    assert await found.check_many([(PROBLEM, "a"), (PROBLEM, "")], 1.0) == [Score(1.0, True), Score(0.0, False)]
    short = checker(tmp_path, "def score(completions):\n    return [1]", batch=True)
    with pytest.raises(TypeError, match="a list for 2 completions, not a list of them"):
        await short.check_many([(PROBLEM, "a"), (PROBLEM, "")], 1.0)


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (0.25, Score(0.25, False)),
        (True, Score(1.0, True)),
        (-2, Score(-2.0, False)),
        ({"format": 0.5, "right": 1}, Score(1.5, True, parts={"format": 0.5, "right": 1.0})),
        ({"format": 0.5, "reward": 0}, Score(0.0, False, parts={"format": 0.5})),
    ],
)
def test_numbers_and_parts(value: Any, score: Score) -> None:
    assert score_of(value) == score


async def test_a_value_that_is_no_number_is_named_without_our_frames(tmp_path: Path) -> None:
    with pytest.raises(ScoringFailure) as caught:
        checker(tmp_path, "def score(completion):\n    return 'good'").check(PROBLEM, "x")
    assert caught.value.detail == "the reward function returned a str, not a number or numbers by name"
    code = "def score(completions):\n    return [1, None]"
    right, wrong = await checker(tmp_path, code, batch=True).check_many([(PROBLEM, "a"), (PROBLEM, "b")], 1.0)
    assert right == Score(1.0, True), "one value fails alone"
    assert isinstance(wrong, ScoringFailure)
    assert wrong.detail == "the reward function returned None, not a number or numbers by name"


async def test_a_function_that_calls_exit_fails_like_one_that_raises(tmp_path: Path) -> None:
    alone = checker(tmp_path, "import sys\ndef score(completion):\n    sys.exit(3)")
    (failed,) = await alone.check_many([(PROBLEM, "a")], 1.0)
    together = checker(tmp_path, "import sys\nasync def score(completion):\n    sys.exit(3)")
    (failed_together,) = await together.check_many([(PROBLEM, "a")], 1.0)
    for one in (failed, failed_together):
        assert isinstance(one, ScoringFailure)
        assert (one.reason, one.detail.splitlines()[-1]) == ("exception", "SystemExit: 3")


@pytest.mark.parametrize("value", [None, "1", [1.0], 1j, {"format": None}, {"": 1.0}])
def test_anything_else_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError):
        score_of(value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def scores(): pass", "has no 'score'"),
        ("score = 3", "is not a function"),
        ("import nothing_like_this", "cannot be loaded"),
        ("def score(solution): pass", "takes an argument 'solution'"),
        ("def score(completions): pass", "takes an argument 'completions'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        checker(tmp_path, code)


def test_names_without_an_entry_point_are_refused() -> None:
    with pytest.raises(TaskError, match="no installed package offers 'mine'"):
        PythonChecker(PythonCheck(kind="python", path="mine")).warm_up()
