"""metrics.jsonl through crashes and full disks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.metrics.sinks.file import FileSink
from rollcast.runtime.errors import RunFolderError


def test_each_step_has_one_line_even_when_reported_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = FileSink(path)
    first.write(1, {"reward": 0.1})
    first.write(2, {"reward": float("nan")})
    first.write(2, {"reward": 0.9})
    with path.open("a") as file:
        file.write('{"step":3,"rew')  # a crash in the middle of a line
    again = FileSink(path)
    again.write(2, {"reward": 0.9})
    again.write(3, {"reward": 0.3})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 1, "reward": 0.1}, {"step": 2, "reward": None}, {"step": 3, "reward": 0.3}]


def test_a_folder_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        FileSink(tmp_path / "gone" / "metrics.jsonl").write(1, {})
