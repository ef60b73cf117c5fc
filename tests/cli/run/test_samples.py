from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.config.config import CoordinatorConfig
from coordinator.ledger.sqlite import Ledger
from coordinator.prompts.samples import SampleBook, sample_of
from coordinator.recovery.resume import TOKENIZER
from coordinator.tasks.checks.task import Problem
from rollcast.cli.run.run_tools import run_config, run_tokenizer
from rollcast.cli.run.samples import samples
from rollcast.runtime.errors import ConfigError, RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder, write_json
from rollcast.wire.text.tokenizer import Tokenizer


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
            verdict = (float(index == 1), index == 1, "" if index else "timeout")
            await book.keep(sample_of("held_out", 40, problem, 0, "2", verdict))

    asyncio.run(fill())
    return folder.root


def test_samples_are_shown_with_their_verdicts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert samples(run) == 0
    shown = capsys.readouterr().out
    assert "sum:1 #0, held_out, version 40: correct" in shown
    assert "2+1=[b]" in shown
    assert "timeout" in shown
    assert samples(run, wrong=True, limit=1, json_output=True) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["problem_id"] == "sum:0"
    assert samples(run, set_name="training", json_output=True) == 0
    assert capsys.readouterr().out == ""


def test_what_is_wrong_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        samples(run, limit=0)
    with pytest.raises(RunFolderError, match="not a run folder"):
        run_config(tmp_path)
    with pytest.raises(StoreError, match="no ledger"):
        run_tokenizer(run_config(run), RunFolder(tmp_path))
