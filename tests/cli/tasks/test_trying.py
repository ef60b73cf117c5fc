"""Test `rollcast tasks try` with the shipped example, which docs/tasks.md shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from coordinator.tasks.build import build_task
from coordinator.tasks.checks.task import Problem
from rollcast.cli.files import load
from rollcast.cli.tasks import trying
from rollcast.cli.tasks.app import app
from rollcast.cli.tasks.trying import try_task
from rollcast.cli.up_config import UpConfig
from rollcast.runtime.errors import ConfigError, NotScored, TaskError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "own-reward"


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text()
    for kind, name in (("python", "reward.py"), ("toml", "run.toml")):
        shown = re.search(rf"```{kind}\n(# {re.escape(name)}\n.*?)```", page, re.DOTALL)
        assert shown is not None
        assert shown[1] == (EXAMPLE / name).read_text()
    assert len([line for line in (EXAMPLE / "reward.py").read_text().splitlines() if line.strip()]) <= 10


def test_the_page_says_how_long_the_example_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    config = load(Path("run.toml"), "up")
    assert isinstance(config, UpConfig)
    warm_start = config.learner.warm_start
    page = (ROOT / "docs" / "tasks.md").read_text()
    assert f"up to {warm_start.steps_max} steps (`learner.warm_start.steps_max`)" in page
    assert f"{warm_start.accuracy_gate:.0%}".replace("%", " %") in page
    task = build_task(config.coordinator.task, 0)
    problem = task.problem(0)
    assert task.demonstration(problem, flawed=True, random=Random(0)) == problem.answer


def test_answers_are_scored_with_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLE)
    (tmp_path / "answers").write_text('x\n{"completion": "0"}\n')
    assert try_task(Path("run.toml"), n=3, answers=tmp_path / "answers", json_output=True) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["completion"], one["reward"] < 0.2) for one in lines] == [("x", True), ("0", True)]
    assert all(one["parts"].keys() == {"right", "digits"} for one in lines)


def test_settings_of_the_file_are_overridden_as_by_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLE)
    changed = ('coordinator.task.check={kind="exact"}',)
    assert try_task(Path("run.toml"), n=1, settings=changed, json_output=True) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["reward"], json.loads(line)["parts"]) == (1.0, {})


def test_a_function_that_raises_shows_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "def problems():\n    yield {'prompt': 'a', 'answer': 'b'}\ndef score(completion):\n    return 1 / 0\n"
    (tmp_path / "bad.py").write_text(code)
    config = f'[task]\nkind = "python"\npath = "{tmp_path}/bad.py:problems"\n[task.check]\nkind = "python"\n'
    (tmp_path / "run.toml").write_text(f'{config}path = "{tmp_path}/bad.py:score"\n')
    with pytest.raises(NotScored, match="1 of 1 completions") as caught:
        try_task(tmp_path / "run.toml", n=1)
    assert caught.value.cause == "ZeroDivisionError: division by zero"
    assert caught.value.fix == f"correct {tmp_path}/bad.py:score"
    shown = capsys.readouterr().out
    assert f'File "{tmp_path}/bad.py", line 4, in score' in shown, "a line is not broken"
    assert "ZeroDivisionError" in shown
    assert "coordinator/" not in shown, "the user's own frames are enough"


def test_a_slow_function_names_the_limit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import time\ndef problems():\n    yield {'prompt': 'a', 'answer': 'b'}\n"
    (tmp_path / "slow.py").write_text(f"{code}def score(completion):\n    time.sleep(60)\n")
    config = f'[task]\nkind = "python"\npath = "{tmp_path}/slow.py:problems"\n[task.check]\nkind = "python"\n'
    (tmp_path / "run.toml").write_text(f'{config}path = "{tmp_path}/slow.py:score"\n[verifier]\ntimeout_s = 0.5\n')
    with pytest.raises(NotScored) as caught:
        try_task(tmp_path / "run.toml", n=1)
    assert caught.value.cause == "no verdict within 0.5 s"
    assert caught.value.fix.endswith("slow.py:score faster, or raise verifier.timeout_s, which is 0.5 s")
    assert "verifier replaced" not in "".join(capfd.readouterr())


def test_the_end_of_input_stands_for_the_problems_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object) -> str:
        raise EOFError

    console = Console()
    monkeypatch.setattr(console, "input", ended)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert trying._answers([Problem("a", "1+1=", "2", {})], None, console, ask=True) == ["2"]


def test_the_group_has_its_command() -> None:
    assert "try" in app


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("peers = 1\n")
    with pytest.raises(ConfigError, match="has no task"):
        try_task(tmp_path / "empty.toml")
    with pytest.raises(ConfigError, match="out of range"):
        try_task(tmp_path / "empty.toml", n=0)
    with pytest.raises(ConfigError, match="exclude each other"):
        try_task(tmp_path / "empty.toml", answers=tmp_path, from_run=tmp_path)


def test_a_fix_names_keys_as_they_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "1+1="}\n')
    task = f'kind = "jsonl"\npath = "{tmp_path}/rows.jsonl"\n'
    for section, key in (("task", " task.bad_rows"), ("coordinator.task", " coordinator.task.bad_rows")):
        (tmp_path / "run.toml").write_text(f"[{section}]\n{task}")
        with pytest.raises(TaskError) as raised:
            try_task(tmp_path / "run.toml")
        assert key in raised.value.fix
