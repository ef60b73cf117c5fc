from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.config.tasks import JsonlTask
from coordinator.tasks.evaluation_sets import pick, texts_of, with_held_out
from coordinator.tasks.mixture import Example
from coordinator.tasks.part_stream import text_hash
from coordinator.tasks.rows import Rows
from coordinator.tasks.token_limits import TokenLimits
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.tokenizer import Tokenizer


@pytest.fixture
def numbers(tmp_path: Path) -> Rows:
    path = tmp_path / "n.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n % 40}?", "answer": str(n % 40)}) + "\n" for n in range(80)))
    return Rows(JsonlTask(kind="jsonl", path=path))


def limits(numbers: Rows, prompt_tokens_max: int) -> TokenLimits:
    return TokenLimits(Tokenizer((), numbers.characters()), prompt_tokens_max, 8)


def test_the_first_different_usable_problems_are_picked(numbers: Rows) -> None:
    found = pick("small", "eval.small", numbers, limits(numbers, 8), 5, 100)
    assert [one.example_id for one in found.examples] == [100, 101, 102, 103, 104]
    assert [one.problem.problem_id for one in found.examples[:2]] == ["eval.small/jsonl:0", "eval.small/jsonl:1"]
    assert texts_of([found]) == {text_hash(f"{n}?") for n in range(5)}
    short = pick("small", "eval.small", numbers, limits(numbers, 2), 50, 0)
    assert (len(short.examples), short.passed_over) == (10, 60)
    assert list(with_held_out([], [short])) == ["held_out", "small"]


def test_a_set_without_usable_problem_is_refused(numbers: Rows) -> None:
    with pytest.raises(TaskError, match="evaluation set small") as caught:
        pick("small", "eval.small", numbers, limits(numbers, 1), 5, 0)
    assert "sampling.prompt_tokens_max to 3" in caught.value.fix


def test_ids_of_held_out_problems_begin_at_0(numbers: Rows) -> None:
    example = Example(7, numbers.problem(0), (1,), ())
    assert with_held_out([example], [])["held_out"].examples[0].example_id == 0
