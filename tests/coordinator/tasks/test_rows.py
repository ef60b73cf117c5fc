from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from coordinator.config.tasks import FieldsConfig, JsonlTask
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.rows import Rows


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def of(path: Path, **fields: object) -> Rows:
    return Rows(JsonlTask(kind="jsonl", path=path, fields=FieldsConfig.model_validate(fields)))


@pytest.fixture
def task(tmp_path: Path) -> Rows:
    rows = [{"prompt": f"Half of {n}?", "answer": f"{n}/2"} for n in range(1, 8)]
    return of(write(tmp_path / "p.jsonl", rows))


def test_rows_are_problems(task: Rows) -> None:
    assert task.problem_count == 7
    assert task.problem(2) == Problem("jsonl:2", "Half of 3?", "3/2", {})
    assert task.problem(9) == task.problem(2)
    assert task.wording() == ("Half of ",)
    assert task.characters() == "/1234567?"
    assert task.demonstration(task.problem(0), flawed=True, random=Random(0)) == "1/2"


@pytest.mark.parametrize(
    ("answer", "completion", "right"),
    [
        ("1/2", "1/2", True),
        ("1/2", "0.5", True),
        ("1/2", r"\frac{2}{4}", True),
        ("1/2", r"so it is $\frac{1}{2}$", True),
        ("1/2", "1/3", False),
        ("1/2", "", False),
        ("1/2", "\N{REPLACEMENT CHARACTER}", False),
        ("x^2+1", "1+x^2", True),
        ("x^2+1", "x^2-1", False),
        ("1,000", "1000", True),
        ("Paris", " Paris ", True),
        ("Paris", "Pairs", False),  # the same letters, which as a product would be equal
        ("42", "4 2", False),
        ("2x+1", "1", False),
        ("2x+1", "1+2*x", True),
        ("12 apples", "12", True),
        ("42", "(" * 60, False),
    ],
)
def test_mathematics_is_compared_as_such(tmp_path: Path, answer: str, completion: str, right: bool) -> None:
    task = of(write(tmp_path / "p.jsonl", [{"prompt": "?", "answer": answer}]))
    score = task.verify(task.problem(0), completion)
    assert (score.exact, score.reward) == (right, float(right))


def test_texts_that_are_not_mathematics_are_not_logged(task: Rows, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        task.verify(task.problem(0), r"$\frac{$ \left( \notacommand")
    assert caplog.records == []


def test_numbers_may_be_answers_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "1+1?", "answer": 2, "source": "school"}\n\n{"prompt": "1/4?", "answer": 0.25}\n')
    task = of(path)
    assert [task.problem(0).answer, task.problem(1).answer] == ["2", "0.25"]


def test_metadata_and_tests_go_with_the_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"q": "add", "unit": ["assert add(1, 2) == 3"], "meta": {"level": 2}}])
    task = of(path, prompt="q", answer="", tests="unit", metadata=["meta.level"])
    tests = {"statements": ["assert add(1, 2) == 3"], "pairs": [], "setup": ""}
    assert task.problem(0) == Problem("jsonl:0", "add", "", {"tests": tests, "metadata": {"meta.level": 2}})
    assert task.demonstration(task.problem(0), flawed=False, random=Random(0)) is None


def test_a_verifier_never_reads_the_rows(tmp_path: Path) -> None:
    task = of(tmp_path / "none.jsonl")
    task.warm_up()
    assert task.verify(Problem("jsonl:0", "?", "1/2", {}), "0.5").exact
