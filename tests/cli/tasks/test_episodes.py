"""Test `rollcast tasks try` on an environment: the shipped guessing game, which docs/tasks.md shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.run import run_tools
from rollcast.cli.tasks.trying import try_task
from rollcast.runtime.errors import NotScored
from tests.coordinator.prompts.stored_run import TOKENIZER, stored_run

EXAMPLE = Path(__file__).parents[3] / "examples" / "guessing"


def test_the_page_shows_the_example() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "tasks.md").read_text()
    for kind, name in (("python", "game.py"), ("toml", "run.toml")):
        assert f"```{kind}\n# {name}\n{(EXAMPLE / name).read_text()}```" in page


def test_turns_come_from_a_file_and_then_from_the_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLE)
    (tmp_path / "turns").write_text("a\n4\n")
    assert try_task(Path("run.toml"), n=2, answers=tmp_path / "turns", json_output=True) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["prompt"] == "guess 1-7:"
    assert [turn["said"] for turn in first["turns"]][:2] == ["a", "4"]
    assert first["turns"][0]["reply"] == ["?"]
    assert all(turn["said"].isdecimal() for turn in second["turns"])
    assert second["reward"] in (0.0, 1.0)


def test_an_episode_that_fails_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "class Game:\n    def reset(self, seed):\n        return 'a'\n    def step(self, text):\n        return 1 / 0\n"
    )
    (tmp_path / "game.py").write_text(code)
    (tmp_path / "run.toml").write_text(f'[task]\nkind = "gym"\npath = "{tmp_path}/game.py:Game"\n')
    (tmp_path / "turns").write_text("b\n")
    with pytest.raises(NotScored, match="1 of 1 episodes"):
        try_task(tmp_path / "run.toml", n=1, answers=tmp_path / "turns")
    assert "ZeroDivisionError" in capsys.readouterr().out
    with pytest.raises(NotScored):
        try_task(tmp_path / "run.toml", n=1)
    assert "it has no teacher" in capsys.readouterr().out


async def test_an_episode_of_a_run_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await stored_run(tmp_path)
    monkeypatch.setattr(run_tools, "run_config", lambda run: None)
    monkeypatch.setattr(run_tools, "run_tokenizer", lambda config, folder: TOKENIZER)
    assert try_task(EXAMPLE / "run.toml", n=1, from_run=tmp_path, json_output=True) == 0
    episode = json.loads(capsys.readouterr().out)
    (turn,) = episode["turns"]
    assert turn["said"]
    assert turn["reply"] == [turn["said"][1:]], "the tool's answer is the first turn's tokens without the first"
    assert (episode["problem_id"], episode["reward"]) == ("sum:4", 1.0)
    assert try_task(EXAMPLE / "run.toml", n=1, from_run=tmp_path) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in shown[1:]] == ["user", "policy", "tool", "reward"]
