"""Test the output of a finished run: its model, its report, its samples."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import learner.evaluation.export as writing
from coordinator.config.config import CoordinatorConfig
from coordinator.prompts.samples import SampleBook, sample_of
from coordinator.recovery.resume import TOKENIZER
from coordinator.stores.sqlite import Ledger
from coordinator.tasks.checks.task import Problem, Score
from rollcast.cli.main import app
from rollcast.cli.run.report import report
from rollcast.cli.run.run_tools import run_config, run_tokenizer
from rollcast.cli.run.samples import TrainingOptions, samples
from rollcast.runtime.errors import CheckpointError, ConfigError, RunFolderError
from rollcast.runtime.run_folder import RunFolder, write_json
from rollcast.wire.ids import RolloutId
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.report.sample_run import sample_run
from tests.coordinator.stored_work import attempt, group, rollout, store_rollout


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run").prepare()
    write_json(folder.config / "coordinator.json", CoordinatorConfig().model_dump(mode="json"))

    async def fill() -> None:
        ledger = Ledger.open(folder.ledger)
        await ledger.set_meta(TOKENIZER, Tokenizer((), "ab").to_json())
        await ledger.close()
        book = SampleBook(folder)
        for index in range(3):
            problem = Problem(f"sum:{index}", f"{index}+1=[b]", str(index + 1), {})
            verdict = Score(float(index == 1), index == 1, "" if index else "timeout")
            await book.keep(sample_of("held_out", 40, problem, 0, "2", verdict))

    asyncio.run(fill())
    return folder.root


def test_samples_are_shown_with_their_verdicts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert samples(run) == 0
    shown = capsys.readouterr().out
    assert "sum:1 #0, held_out, version 40: correct" in shown
    assert "2+1=[b]" in shown
    assert "timeout" in shown
    assert "3 completions of the set 'held_out' at version 40." in shown
    assert samples(run, wrong=True, limit=1) == 0
    found = " ".join(capsys.readouterr().out.split())
    assert "2 of 3 completions of the set 'held_out' at version 40 are not entirely correct, 1 shown" in found
    assert samples(run, wrong=True, limit=1, json_output=True) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["problem_id"] == "sum:0"
    assert samples(run, set_name="training", json_output=True) == 0
    assert capsys.readouterr().out == ""


def test_rollouts_of_training_are_filtered_and_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        ledger = Ledger.open(RunFolder(run).ledger)
        ledger.record_group(group(1), Problem("sum:7", "3+4=", "7", {}).to_json())
        for number in (1, 2):
            ledger.record_attempt(attempt(number, number, group_id=1))
            made = rollout(number, number, version=10 - number, tokens=2)
            await ledger.store_rollouts([store_rollout(number, made)])
            await ledger.record_score(RolloutId(number), Score(number / 2, number == 2, "", {"format": 0.5}))
        await ledger.close()

    asyncio.run(fill())
    assert samples(run, training=TrainingOptions(reward_min=0.9)) == 0
    shown = capsys.readouterr().out
    assert "training, version 8" in shown
    assert "format 0.5" in shown
    assert samples(run, training=TrainingOptions(problem="sum:1"), json_output=True) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["version"] for line in lines] == [8, 9]  # the two versions' answers, side by side
    assert "token_ids" not in lines[0]
    with pytest.raises(ConfigError, match="do not go with --set held_out"):
        samples(run, set_name="held_out", training=TrainingOptions(age_max=2))
    pytest.importorskip("pyarrow")
    assert samples(run, training=TrainingOptions(parquet=tmp_path / "out.parquet")) == 0
    assert "2 rollouts in" in capsys.readouterr().out


def test_errors_name_the_problem(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        samples(run, limit=0)
    with pytest.raises(RunFolderError, match="holds no run"):
        run_config(tmp_path)
    with pytest.raises(RunFolderError, match="holds no run"):
        run_tokenizer(run_config(run), RunFolder(tmp_path))


def cli(*arguments: str) -> int:
    return int(app(arguments, exit_on_error=False, result_action="return_value") or 0)


def test_options_reach_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def stand_in(run_folder: Path, target: Path, **options: Any) -> writing.Exported:
        asked.update(options, run=run_folder, out=target)
        return writing.Exported(12, target, 3_000_000)

    monkeypatch.setattr(writing, "export", stand_in)
    assert cli("export", "runs/latest", "--to", "hf", "out", "--version", "12", "--dtype", "f32", "--file-gb", "1") == 0
    assert asked == {
        "run": Path("runs/latest"),
        "out": Path("out"),
        "version": 12,
        "dtype": "float32",
        "tokenizer_folder": None,
        "file_bytes_max": 10**9,
        "adapter": False,
    }
    assert capsys.readouterr().out == "step 12 as out: 3.0 MB of weights in f32\n"
    cli("export", "runs/latest", "out", "--json")
    assert asked["dtype"] == "bfloat16"
    assert json.loads(capsys.readouterr().out)["weight_bytes"] == 3_000_000


def test_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        cli("export", str(tmp_path), str(tmp_path / "out"))


def test_report_is_written_into_the_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sample_run(tmp_path / "run")
    assert report(folder.root, json_output=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"file": str(folder.root / "report.html"), "bytes": (folder.root / "report.html").stat().st_size}


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    folder = sample_run(tmp_path / "run")
    with pytest.raises(RunFolderError):
        report(folder.root, out=tmp_path / "gone" / "report.html")
