from __future__ import annotations

import json
import logging
from pathlib import Path
from random import Random

import pytest

from coordinator.tasks.adapter import Problem
from coordinator.tasks.jsonl import LINE_BYTES_MAX, Jsonl
from rollcast.runtime.errors import TaskError


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def task(tmp_path: Path) -> Jsonl:
    return Jsonl(write(tmp_path / "p.jsonl", [{"prompt": f"Half of {n}?", "answer": f"{n}/2"} for n in range(1, 8)]))


def test_rows_are_problems(task: Jsonl) -> None:
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
    task = Jsonl(write(tmp_path / "p.jsonl", [{"prompt": "?", "answer": answer}]))
    score = task.verify(task.problem(0), completion)
    assert (score.exact, score.reward) == (right, float(right))


def test_texts_that_are_not_mathematics_are_not_logged(task: Jsonl, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        task.verify(task.problem(0), r"$\frac{$ \left( \notacommand")
    assert caplog.records == []


def test_numbers_may_be_answers_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "1+1?", "answer": 2, "source": "school"}\n\n{"prompt": "1/4?", "answer": 0.25}\n')
    task = Jsonl(path)
    assert [task.problem(0).answer, task.problem(1).answer] == ["2", "0.25"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not an object"),
        ('{"prompt": "a"}', "'answer' is missing"),
        ('{"answer": "a"}', "'prompt' is missing"),
        ('{"prompt": "a", "answer": true}', "'answer' is missing or not a text"),
        ('{"prompt": " ", "answer": "1"}', "'prompt' is missing"),
        ("[" * 100_000, "not JSON"),
        ('"' + "a" * LINE_BYTES_MAX + '"', "too long"),
        ('{"prompt": "\\ud800", "answer": "1"}', "'prompt' is missing or not a text"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(TaskError) as caught:
        Jsonl(path)
    assert f"{path}, line 2" in str(caught.value)
    assert words in str(caught.value)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "\xff\xfe", "answer": "b"}\n')
    with pytest.raises(TaskError, match="line 1"):
        Jsonl(path)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot read the task file"):
        Jsonl(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match="has no problems"):
        Jsonl(tmp_path / "empty.jsonl")
