from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollcast.cli.main import app
from rollcast.runtime.errors import ConfigError, TaskError


def curate(source: Path, out: Path, *options: str | Path) -> Any:
    """As from the command line."""
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


def test_rows_worth_training_on_are_written_and_the_others_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    with pytest.raises(TaskError, match="cannot read the task file"):
        curate(tmp_path / "none.jsonl", out)
    assert lines(out) == [{"prompt": "old", "answer": "1"}]
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--low 0.5", "need pass rates"),
        ("--low 0.5 --high 0.1", "out of range"),
        ("--overlap 0", "out of range"),
        ("--against test.jsonl", "names no set"),
        ("--pass-rates a --profile b", "cannot be used together"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: str, words: str) -> None:
    source = write(tmp_path / "raw.jsonl", *ROWS)
    with pytest.raises(ConfigError, match=words):
        curate(source, tmp_path / "clean.jsonl", *options.split())
