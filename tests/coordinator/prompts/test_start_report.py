"""Test what a starting coordinator reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coordinator.prompts import start_report
from coordinator.prompts.start_report import start_reported
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.start_deadline import StartReport
from tests.coordinator.link.ends import until


async def test_the_folder_says_what_is_done_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_report, "WRITTEN_EVERY_S", 0.01)
    folder, words = RunFolder(tmp_path), ["loading the task"]
    with capture_logs() as logs:
        async with start_reported(folder, lambda: words[0]):
            for doing in ("loading the task", "loading the task: 1,000 rows read"):
                words[0] = doing
                await until(lambda: reads(folder, words[0]))
    assert StartReport.read(folder.starting) is None
    assert [one["doing"] for one in logs] == ["loading the task"], "the log has a line every ten seconds"


def reads(folder: RunFolder, doing: str) -> bool:
    report = StartReport.read(folder.starting)
    return report is not None and report.doing == doing


async def test_a_folder_that_cannot_be_written_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_report, "WRITTEN_EVERY_S", 0.0)
    asked = 0

    def progress() -> str:
        nonlocal asked
        asked += 1
        return "loading the task"

    async with start_reported(RunFolder(tmp_path / "missing"), progress):
        await until(lambda: asked > 2)
