from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from learner.supervised import service
from learner.supervised.config import SftConfig
from learner.supervised.session import Report
from rollcast.cli.data.sft import Lines, line, sft
from rollcast.runtime.run_folder import RunFolder

STEP = {"step": 3, "steps": 9, "epoch": 0, "loss": 1.25, "learning_rate": 1e-5, "tokens_per_s": 1234.5}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "sft.toml"
    file.write_text(f'run_folder = "{tmp_path / "run"}"\n[data]\npath = "chats.jsonl"\n')
    return file


def test_a_line_is_printed_when_one_is_due_and_for_every_held_out_loss(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(Console())
    for more in ({}, {}, {"held_out_loss": 1.5}):
        lines.show(STEP | more)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "step 3/9  epoch 1  loss 1.2500  rate 1e-05  1,234 tokens/s",
        "step 3/9  epoch 1  loss 1.2500  held-out 1.5000  rate 1e-05  1,234 tokens/s",
    ]
    assert printed[0] == line(STEP)


def test_the_configuration_is_shown_and_overridden(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sft(config, setting=("epochs=3",), dry_run=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["epochs"], shown["data"]["path"]) == (3, "chats.jsonl")


def test_the_summary_names_the_next_command(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(parsed: SftConfig, stop: asyncio.Event, report: Report) -> int:
        folder = RunFolder(parsed.run_folder).prepare()
        folder.summary.write_text(json.dumps({"held_out_loss": 0.5, "steps": 9}))
        return 0

    monkeypatch.setattr(service, "run", run)
    monkeypatch.setattr("rollcast.cli.data.sft.configure_logging", lambda name, log_file: None)
    assert sft(config) == 0
    assert "rollcast export" in capsys.readouterr().out
    assert sft(config, json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["held_out_loss"] == 0.5


def test_the_page_about_own_tasks_has_a_configuration_and_writes_examples_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
    (shown,) = re.findall(r"```toml\n(# sft\.toml\n.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^python -c (.*) > examples\.jsonl$", page, re.MULTILINE)
    made = subprocess.run([sys.executable, "-c", *shlex.split(command)], check=True, capture_output=True, text=True)
    rows = [json.loads(row) for row in made.stdout.splitlines()]
    assert len(rows) == 99
    assert rows[0] == {"prompt": "1+1=", "completion": "2"}
    monkeypatch.chdir(tmp_path)
    Path("examples.jsonl").write_text(made.stdout)
    Path("sft.toml").write_text(shown)
    assert sft(Path("sft.toml"), dry_run=True) == 0
    assert json.loads(capsys.readouterr().out)["export"] == "models/shown"
