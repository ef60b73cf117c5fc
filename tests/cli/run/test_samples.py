"""Test what `rollcast samples` prints of a run's rollouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.main import app
from rollcast.cli.run import samples as command
from tests.coordinator.prompts.stored_run import TOKENIZER, stored_run


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "_tokenizer", lambda folder: TOKENIZER)
    monkeypatch.setenv("COLUMNS", "200")
    return (await stored_run(tmp_path)).root


async def test_a_game_names_the_agent_that_played_and_shows_all_of_its_turns(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.samples(run, set_name="training", limit=2) == 0
    shown = capsys.readouterr().out
    assert "sum:4 #0 buyer, training, version 9, alpha: correct" in shown
    assert "sum:3 #0, training" in shown, "its problem has no agents"
    assert "assistant, version 9" in shown
    assert "tool  " in shown
    assert "tool, version" not in shown, "no version made it"


async def test_n_limits_as_in_tasks_try(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("samples", str(run), "--set", "training", "--n", "1")
    assert not app(words, exit_on_error=False, result_action="return_value")
    assert "--limit 1." in capsys.readouterr().out


async def test_nothing_found_is_a_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.samples(run, set_name="training", training=command.TrainingOptions(age_min=99)) == 0
    assert capsys.readouterr().out.startswith("No stored rollout matches: none is scored yet")


async def test_a_line_of_json_has_the_agent_and_the_whole_conversation(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.samples(run, set_name="training", limit=1, json_output=True) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["agent"] == "buyer"
    assert one["completion"] == "\n".join(turn["text"] for turn in one["turns"])
    assert "token_ids" not in one["turns"][0]


async def test_a_version_is_one_of_the_policy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("samples", str(run), "--set", "training", "--version", "9")
    assert app(arguments, exit_on_error=False, result_action="return_value") == 0
    shown = capsys.readouterr().out
    assert "sum:4 #0 buyer, training, version 9" in shown
    assert "version 2" not in shown
