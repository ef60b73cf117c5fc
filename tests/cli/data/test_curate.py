"""Test `rollcast curate`: data sets are cleaned, and pass rates profiled with a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from coordinator.config.checks import ExactCheck
from coordinator.config.config import CoordinatorConfig
from coordinator.config.tasks import JsonlTask
from coordinator.recovery.resume import TOKENIZER
from coordinator.stores.sqlite import Ledger
from coordinator.tasks.curation.pass_rates import PassRate
from coordinator.tasks.fields import Row
from rollcast.cli.data import profiling as module
from rollcast.cli.data.profiling import profiling
from rollcast.cli.main import app
from rollcast.runtime.errors import ConfigError, TaskError
from rollcast.runtime.run_folder import RunFolder, write_json
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer


def curate(source: Path, out: Path, *options: str | Path) -> Any:
    """Call `rollcast curate` as from the command line and return its exit status."""
    command = ["curate", source, "--out", out, *options]
    return app([str(word) for word in command], result_action="return_value", exit_on_error=False)


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


ROWS = (
    {"question": "1+1?", "answer": "$2$", "level": 1},
    {"question": "1 + 1", "answer": "2", "level": 1},
    {"question": "2+2?", "answer": "4", "level": 2},
    {"question": "3+3?", "answer": "6", "level": 3},
    {"question": "4+4?"},
)


def test_useful_rows_are_written_and_removed_rows_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "raw.jsonl", *ROWS)
    rates = write(
        tmp_path / "samples.jsonl",
        {"prompt": "1+1?", "pass_rate": 0.5, "samples": 8},
        {"prompt": "2+2?", "exact": True},
    )
    test_set = write(tmp_path / "test.jsonl", {"question": "3+3 = ?"}, {"question": "3+3?"})
    out, removed = tmp_path / "clean.jsonl", tmp_path / "removed.jsonl"
    status = curate(
        source,
        out,
        *("--prompt", "question", "--metadata", "level", "--against", f"test={test_set}"),
        *("--pass-rates", rates, "--low", "0.1", "--high", "0.9", "--removed", removed, "--json"),
    )
    assert status == 0
    assert lines(out) == [{"level": 1, "prompt": "1+1?", "answer": "2", "pass_rate": 0.5, "samples": 8}]
    report = json.loads(capsys.readouterr().out)
    assert (report["read"], report["kept"]) == (5, 1)
    reasons = ("exact_duplicate", "contaminated", "too_easy", "malformed")
    assert {name: count for name, count in report["removed"].items() if count} == dict.fromkeys(reasons, 1)
    assert [one["reason"] for one in lines(removed)] == ["exact_duplicate", "contaminated", "malformed", "too_easy"]
    assert not list(tmp_path.glob(".*.tmp"))


def test_conversations_stay_conversations(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    source = write(tmp_path / "chats.jsonl", {"prompt": said, "answer": "2"})
    assert curate(source, tmp_path / "out.jsonl") == 0
    assert lines(tmp_path / "out.jsonl") == [{"prompt": said, "answer": "2"}]


def test_the_table_names_every_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "raw.jsonl", *ROWS)
    curate(source, tmp_path / "clean.jsonl", "--prompt", "question")
    shown = capsys.readouterr().out
    for words in ("read", "removed: exact duplicate", "removed: malformed", "kept", "answers normalised: marks"):
        assert words in shown
    assert "contaminated" not in shown


def test_the_same_again_gives_the_same_file(tmp_path: Path) -> None:
    source = write(tmp_path / "raw.jsonl", *ROWS)
    for name in ("a.jsonl", "b.jsonl"):
        curate(source, tmp_path / name, "--prompt", "question")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_failure_leaves_the_file_before_alone(tmp_path: Path) -> None:
    out = write(tmp_path / "clean.jsonl", {"prompt": "old", "answer": "1"})
    with pytest.raises(TaskError, match="cannot read the data file"):
        curate(tmp_path / "none.jsonl", out)
    assert lines(out) == [{"prompt": "old", "answer": "1"}]
    assert not list(tmp_path.glob(".*.tmp"))
    with pytest.raises(TaskError, match=r"none of the \d+ rows of .* can be used") as caught:
        curate(write(tmp_path / "raw.jsonl", *ROWS), out, "--prompt", "no-such-column")
    assert "'no-such-column' is missing" in caught.value.cause
    assert "--prompt" in caught.value.fix
    assert lines(out) == [{"prompt": "old", "answer": "1"}]


def test_a_fix_names_options_rather_than_keys_of_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        curate(tmp_path / "none.jsonl", tmp_path / "out.jsonl")
    assert caught.value.fix == "correct the path of the source"
    source, other = write(tmp_path / "raw.jsonl", *ROWS), write(tmp_path / "test.jsonl", {"prompt": "3+3?"})
    with pytest.raises(TaskError, match="'question' is missing") as caught:
        curate(source, tmp_path / "out.jsonl", "--prompt", "question", "--against", f"test={other}")
    assert caught.value.fix == f"rename the column of the prompts in {other}: --prompt names it for both files"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--low 0.5", "need pass rates"),
        ("--low 0.5 --high 0.1", "out of range"),
        ("--overlap 0", "out of range"),
        ("--against test.jsonl", "has no name and source"),
        ("--pass-rates a --profile b", "cannot be used together"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: str, words: str) -> None:
    source = write(tmp_path / "raw.jsonl", *ROWS)
    with pytest.raises(ConfigError, match=words):
        curate(source, tmp_path / "clean.jsonl", *options.split())


TASK = JsonlTask(kind="jsonl", path=Path("never-read.jsonl"), check=ExactCheck())

LETTERS = Tokenizer((), "abcdefgh")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run").prepare()
    config = CoordinatorConfig.model_validate({"sampling": {"prompt_tokens_max": 4, "new_tokens_max": 3}})
    write_json(folder.config / "coordinator.json", config.model_dump(mode="json"))

    async def fill() -> None:
        ledger = Ledger.open(folder.ledger)
        await ledger.set_meta(TOKENIZER, LETTERS.to_json())
        await ledger.close()

    asyncio.run(fill())
    return folder.root


class ScriptedSampler:
    """Samples `a` and `b` in turn, and records its requests."""

    asked: ClassVar[list[Sequence[int]]] = []

    def __init__(self, host: object, params: object, most: int, score: Callable[..., Any], seed: int) -> None:
        self._score = score

    def correct(self, problems: Sequence[pb.Example], samples: int, *, seeds: Sequence[int]) -> list[int]:
        self.asked.append(seeds)
        completions = [
            pb.Completion(example_id=one.example_id, token_ids=[*LETTERS.encode("ab"[number % 2]), 1])
            for one in problems
            for number in range(samples)
        ]
        scores = self._score(completions)
        return [sum(one.exact for one in scores[at : at + samples]) for at in range(0, len(scores), samples)]


def test_rows_are_solved_by_the_runs_policy_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_policy", lambda folder: (SimpleNamespace(run_id="r", step=7), {}))
    monkeypatch.setattr(module, "CheckpointSampler", ScriptedSampler)
    rows = [Row("aa", "a"), Row("bb", "c"), Row("abcde", "a"), Row("zz", "a")]
    expected = [PassRate(4, 2), PassRate(4, 0), None, None]
    kept = tmp_path / "profile.jsonl"
    with profiling(run, run, TASK, 4, kept) as profile:
        assert profile(rows) == expected
    with profiling(run, run, TASK, 4, kept) as profile:
        assert profile([*rows, Row("cc", "b")]) == [*expected, PassRate(4, 2)]
    assert [len(one) for one in ScriptedSampler.asked] == [2, 1]
