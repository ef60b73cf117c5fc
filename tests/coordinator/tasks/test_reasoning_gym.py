"""Test problems that reasoning-gym generates, one task or several, and the careless teacher of the warm start."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coordinator.config.checks import ExactCheck, MathCheck
from coordinator.config.tasks import JsonlTask
from coordinator.tasks import reasoning_gym
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.multi_task import Mixed, Part, named
from coordinator.tasks.reasoning_gym import FORGET_PROBABILITY, ReasoningGym, careless_sum, chain_sum
from coordinator.tasks.rows import Rows
from rollcast.runtime.errors import MissingExtra, TaskError
from rollcast.wire.text.tokenizer import Tokenizer

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}


@pytest.fixture(scope="module")
def sums() -> ReasoningGym:
    return ReasoningGym("chain_sum", SMALL, 7)


def test_problems_follow_from_seed_and_index(sums: ReasoningGym) -> None:
    again, other = ReasoningGym("chain_sum", SMALL, 7), ReasoningGym("chain_sum", SMALL, 8)
    for index in (0, 1, 499, 500, 123_456, 1 << 41):
        assert again.problem(index) == sums.problem(index)
        assert other.problem(index).prompt != sums.problem(index).prompt
    assert sums.problem(3).problem_id == "chain_sum:3"
    assert len({sums.problem(index).prompt for index in range(1000)}) > 900


def test_the_wording_is_two_tokens(sums: ReasoningGym) -> None:
    assert sums.wording() == ("State the final answer to the following arithmetic problem: ", " =")
    assert sums.characters() == " +-0123456789"
    tokenizer = Tokenizer(sums.wording(), sums.characters())
    assert len(tokenizer.encode(sums.problem(0).prompt)) == 2 + len("12 + 34")


def test_scores(sums: ReasoningGym) -> None:
    problem = sums.problem(0)
    assert sums.verify(problem, problem.answer).exact
    assert sums.verify(problem, "nonsense").reward == 0.0
    assert sums.verify(problem, "").reward == 0.0
    part = sums.verify(problem, problem.answer + " or so")
    assert 0.0 < part.reward < 1.0
    assert not part.exact


def test_null_attackers_earn_little(sums: ReasoningGym) -> None:
    """Completions without knowledge score little: a constant, random digits, and another problem's answer."""
    random = Random(0)
    problems = [sums.problem(index) for index in range(500)]
    attacks = {
        "constant": ["10"] * 500,
        "random": [str(random.randrange(200)) for _ in problems],
        "replayed": [problem.answer for problem in problems[1:] + problems[:1]],
    }
    for name, answers in attacks.items():
        exact = [sums.verify(problem, answer).exact for problem, answer in zip(problems, answers, strict=True)]
        assert sum(exact) / 500 <= 0.03, name


@pytest.mark.parametrize("name", ["chain_sum", "acre", "basic_arithmetic", "spell_backward", "word_ladder", "arc_1d"])
def test_any_generator_scores_its_own_answers_after_json(name: str) -> None:
    task = ReasoningGym(name, {}, 3)
    for index in (0, 700, 1 << 40):
        problem = Problem.from_json(task.problem(index).to_json())
        assert task.verify(problem, problem.answer).exact


def test_a_problem_that_this_process_would_make_otherwise_keeps_its_answer(sums: ReasoningGym) -> None:
    """Some generators iterate over sets: the verifier process makes another entry for the same index."""
    ours = sums.problem(0)
    data = {**ours.data, "answer": "4711"}
    theirs = Problem(ours.problem_id, "Another question?", "4711", data)
    assert sums.verify(theirs, "4711").exact
    assert not sums.verify(theirs, ours.answer).exact


def test_demonstrations(sums: ReasoningGym) -> None:
    problems = [sums.problem(index) for index in range(300)]
    random = Random(0)
    right = [sums.demonstration(problem, flawed=False, random=random) for problem in problems]
    flawed = [sums.demonstration(problem, flawed=True, random=random) for problem in problems]
    assert right == [problem.answer for problem in problems]
    share = sum(a == b for a, b in zip(right, flawed, strict=True)) / 300
    assert 0.25 < share < 0.5
    without_teacher = ReasoningGym("spell_backward", {}, 3)
    problem = without_teacher.problem(0)
    assert without_teacher.demonstration(problem, flawed=True, random=random) == problem.answer


def test_a_generator_without_one_right_answer_has_no_demonstration() -> None:
    task = ReasoningGym("propositional_logic", {}, 3)
    assert task.problem(0).answer == ""
    assert task.demonstration(task.problem(0), flawed=False, random=Random(0)) is None
    json.dumps(task.problem(0).data)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("chain_sun", {}, "chain_sum"),
        ("chain_sum", {"max_term": 3}, "max_terms"),
        ("chain_sum", {"seed": 3}, "run.seed"),
        ("chain_sum", {"min_terms": 0}, "min_terms must be positive"),
        ("chain_sum", {"min_terms": "two"}, "refuses"),
        ("composite", {}, "at least one dataset"),
        ("qqqqqqqqqqqq", {}, "it has: "),
    ],
)
def test_wrong_names_and_parameters(name: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError) as caught:
        ReasoningGym(name, parameters, 0)
    assert words in str(caught.value)


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingExtra, match="reasoning-gym"):
        reasoning_gym.ReasoningGym("chain_sum", {}, 0)


def rows(path: Path, prompt: str, check: ExactCheck | MathCheck) -> Rows:
    path.write_text("".join(json.dumps({"prompt": f"{prompt} {n}", "answer": "1/2"}) + "\n" for n in range(3)))
    return Rows(JsonlTask(kind="jsonl", path=path, check=check))


def test_each_problem_has_its_parts_verifier(tmp_path: Path) -> None:
    mixed = Mixed(
        [
            Part("strict", rows(tmp_path / "a.jsonl", "Half", ExactCheck())),
            Part("maths", rows(tmp_path / "b.jsonl", "Part", MathCheck())),
        ]
    )
    problem = Problem("jsonl:0", "Half 0", "1/2", {})
    assert not mixed.verify(named("strict", problem), "0.5").exact
    assert mixed.verify(named("maths", problem), "0.5").exact
    assert not mixed.verify(problem, "0.5").exact  # the first part's
    assert mixed.wording() == ("Half ", "Part ")
    assert set(mixed.characters()) == set("Half Part 012/")
    assert not mixed.starts_processes


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        (42, 25, 67),  # nothing to carry: right
        (57, 65, 12),  # 7+5 -> 2, 5+6 -> 1
        (9, 1, 0),
        (42, -25, 27),  # 2-5 -> 7, 4-2 -> 2
        (25, -42, 83),  # the borrow out of the first place is dropped too
        (-3, -9, -2),
        (-25, 42, 27),
        (100, -1, 109),
        (0, 0, 0),
    ],
)
def test_careless_sum_drops_carries_and_borrows(left: int, right: int, result: int) -> None:
    assert careless_sum(left, right) == result


def test_every_place_is_right_by_itself() -> None:
    random = Random(0)
    for _ in range(500):
        left, right = random.randrange(1000), random.randrange(1000)
        assert careless_sum(left, right) % 10 == (left + right) % 10
        assert careless_sum(left, -right) % 10 == (left - right) % 10


def test_teacher_is_careless_at_its_rate() -> None:
    random = Random(1)
    answers = [chain_sum({"expression": "58 + 67 - 9"}, random) for _ in range(2000)]
    assert set(answers) == {"116", str(careless_sum(careless_sum(58, 67), -9))}
    assert abs(answers.count("116") / 2000 - (1 - FORGET_PROBABILITY)) < 0.03


def test_signed_terms() -> None:
    assert chain_sum({"expression": "-5 + -3 - -9"}, Random(8)) in {"1", str(careless_sum(careless_sum(-5, -3), 9))}
