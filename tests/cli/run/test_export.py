from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import learner.evaluation.export as writing
from rollcast.cli.main import app
from rollcast.runtime.errors import CheckpointError


def run(*arguments: str) -> int:
    return int(app(arguments, exit_on_error=False, result_action="return_value") or 0)


def test_options_reach_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def stand_in(run_folder: Path, target: Path, **options: Any) -> writing.Exported:
        asked.update(options, run=run_folder, out=target)
        return writing.Exported(12, target, 3_000_000)

    monkeypatch.setattr(writing, "export", stand_in)
    assert run("export", "runs/latest", "--to", "hf", "out", "--version", "12", "--dtype", "f32", "--file-gb", "1") == 0
    assert asked == {
        "run": Path("runs/latest"),
        "out": Path("out"),
        "version": 12,
        "dtype": "float32",
        "tokenizer_folder": None,
        "file_bytes_max": 10**9,
    }
    assert capsys.readouterr().out == "step 12 as out: 3.0 MB of weights in f32\n"
    run("export", "runs/latest", "out", "--json")
    assert asked["dtype"] == "bfloat16"
    assert json.loads(capsys.readouterr().out)["weight_bytes"] == 3_000_000


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        run("export", str(tmp_path), str(tmp_path / "out"))
