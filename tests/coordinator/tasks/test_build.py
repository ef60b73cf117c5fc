"""Test tasks built from configuration: each kind, evaluation sets, limits in tokens, and a tokenizer's wording."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.config.tasks import JsonlTask, ReasoningGymTask, TaskConfig
from coordinator.tasks.build import build_task, task_config_from_json, task_config_to_json
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.evaluation_sets import pick, texts_of, with_held_out
from coordinator.tasks.mixture import Example
from coordinator.tasks.part_stream import text_hash
from coordinator.tasks.reasoning_gym import ReasoningGym
from coordinator.tasks.rows import Rows
from coordinator.tasks.token_limits import TokenLimits
from coordinator.tasks.wording import PIECES_MAX, fixed_pieces, other_characters
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from tests.wire.text.hub_tokenizer_files import tokenizer_folder


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


def test_each_kind_has_its_adapter(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n')
    assert isinstance(build_task(JsonlTask(kind="jsonl", path=path), 0), Rows)
    assert isinstance(build_task(ReasoningGymTask(), 0), ReasoningGym)


@pytest.mark.parametrize(
    "config", [ReasoningGymTask(parameters={"max_terms": 3}), JsonlTask(kind="jsonl", path=Path("a/b.jsonl"))]
)
def test_the_configuration_survives_json(config: TaskConfig) -> None:
    assert task_config_from_json(task_config_to_json(config)) == config


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TaskError):
        task_config_from_json('{"kind": "hostile"}')


def test_why_a_problem_cannot_be_used() -> None:
    limits = TokenLimits(Tokenizer((), "ab"), 3, 2)
    asked = [("ab", "a"), ("abab", "a"), ("ab", "ab"), ("ab", "c"), ("c", "a")]
    found = [limits.check(Problem("x:0", prompt, answer, {})) for prompt, answer in asked]
    assert found == [
        ((2, 3), ""),
        (None, "too_long"),
        (None, "answer_too_long"),
        (None, "unknown_characters"),
        (None, "unknown_characters"),
    ]
    assert limits.higher_limits() == ["raise sampling.prompt_tokens_max to 4 and sampling.new_tokens_max to 3"]
    assert "2 have characters that the tokenizer lacks" in limits.lengths()


def test_a_published_model_may_need_more_tokens_than_the_answer_has(tmp_path: Path) -> None:
    limits = TokenLimits(HubTokenizer(tokenizer_folder(tmp_path), ChatSettings(enabled=False)), 64, 1)
    assert limits.check(Problem("x:0", "ab", "ab", {})) == (None, "answer_too_long")
    (fix,) = limits.higher_limits()
    assert re.fullmatch(r"raise sampling\.new_tokens_max to \d+ \(more where the model reasons first\)", fix)


def test_common_start_end_and_words() -> None:
    prompts = ["Add 1 to 25 with care: now", "Add 77 to 3 with zeal: now", "Add 5 to 5 with care: now"]
    pieces = fixed_pieces(prompts)
    assert pieces == ("Add ", ": now", "care", "with")
    assert other_characters(pieces, prompts) == " 12357aelotz"


def test_one_prompt_has_no_fixed_wording() -> None:
    assert fixed_pieces(["Add 1"]) == ()
    assert fixed_pieces([]) == ()
    assert other_characters((), ["ba", "ab"]) == "ab"


def test_equal_prompts_are_one_piece() -> None:
    assert fixed_pieces(["same", "same"]) == ("same",)


@given(st.lists(st.text(alphabet="abc 12+=", max_size=20), min_size=1, max_size=12))
@settings(deadline=None, max_examples=100)
def test_every_text_it_saw_can_be_encoded(texts: list[str]) -> None:
    pieces = fixed_pieces(texts)
    assert len(pieces) <= PIECES_MAX
    tokenizer = Tokenizer(pieces, other_characters(pieces, texts))
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
