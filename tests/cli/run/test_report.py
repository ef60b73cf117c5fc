"""`rollcast report` writes a file and says where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.cli.run.report import report
from rollcast.runtime.errors import RunFolderError
from tests.coordinator.report.sample_run import sample_run


def test_it_is_written_into_the_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sample_run(tmp_path / "run")
    assert report(folder.root, json_output=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"file": str(folder.root / "report.html"), "bytes": (folder.root / "report.html").stat().st_size}


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    folder = sample_run(tmp_path / "run")
    with pytest.raises(RunFolderError):
        report(folder.root, out=tmp_path / "gone" / "report.html")
