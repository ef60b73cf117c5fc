from __future__ import annotations

import asyncio
import errno
import json
import sys
from pathlib import Path

import pytest
import structlog

from rollcast.runtime.logs import BURST_S, FirstFailures, configure_logging, recent_lines


def test_json_lines_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "peer.log"
    configure_logging("peer", log_file=file)
    structlog.get_logger().info("joined", invite="rollcast1-abc", join_token="abc", tokens=3, public_key="ff")
    (entry,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert entry["event"] == "joined"
    assert entry["role"] == "peer"
    assert entry["invite"] == entry["join_token"] == "[redacted]"
    assert (entry["tokens"], entry["public_key"]) == (3, "ff")


class FullDisk:
    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "disk full")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    def isatty(self) -> bool:
        return False


def test_a_full_disk_loses_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    configure_logging("peer")
    structlog.get_logger().info("this cannot be written")


def test_a_log_is_bounded_and_goes_on_in_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "peer.log"
    configure_logging("peer", log_file=file, bytes_max=2000)
    for number in range(100):
        structlog.get_logger().info("line", number=number)
    newest = [json.loads(line)["number"] for line in file.read_text().splitlines()]
    before = [json.loads(line)["number"] for line in (tmp_path / "peer.log.1").read_text().splitlines()]
    assert [*before, *newest] == list(range(before[0], 100))
    assert max(file.stat().st_size, (tmp_path / "peer.log.1").stat().st_size) <= 2000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peer.log", "peer.log.1"]


def test_the_newest_lines_are_remembered_without_secrets(tmp_path: Path) -> None:
    configure_logging("peer", log_file=tmp_path / "peer.log")
    for number in range(500):
        structlog.get_logger().info("drawn", number=number, join_token="abc", where=tmp_path, text="x" * 1000)
    lines = recent_lines()
    assert len(lines) == 200
    assert (lines[-1]["number"], lines[-1]["join_token"], lines[-1]["where"]) == (499, "[redacted]", str(tmp_path))
    assert len(lines[-1]["text"]) == 400


async def test_lines_of_a_burst_are_written_together(tmp_path: Path) -> None:
    file = tmp_path / "peer.log"
    configure_logging("peer", log_file=file)
    for number in range(3):
        structlog.get_logger().info("joined", number=number)
    assert numbers_in(file) == [0], "the first line waits for nothing"
    await asyncio.sleep(1.5 * BURST_S)
    assert numbers_in(file) == [0, 1, 2]


def test_lines_whose_loop_ends_under_them_are_written_with_the_next(tmp_path: Path) -> None:
    async def burst() -> None:
        for number in range(3):
            structlog.get_logger().info("left", number=number)

    file = tmp_path / "peer.log"
    configure_logging("peer", log_file=file)
    asyncio.run(burst())
    structlog.get_logger().info("ended", number=3)
    assert numbers_in(file) == [0, 1, 2, 3]
    asyncio.run(burst())
    configure_logging("peer")
    assert numbers_in(file)[-3:] == [0, 1, 2], "another destination leaves nothing unwritten"


def numbers_in(file: Path) -> list[int]:
    return [json.loads(line)["number"] for line in file.read_text().splitlines()]


def test_only_the_first_of_several_failures_in_a_row_is_logged() -> None:
    failures = FirstFailures(structlog.get_logger(), "receipts are not written")
    with structlog.testing.capture_logs() as logged:
        failures.failed(cause="disk full")
        failures.failed(cause="disk full")
        failures.worked()
        failures.failed(cause="read-only")
    assert [(entry["event"], entry["cause"]) for entry in logged] == [
        ("receipts are not written", "disk full"),
        ("receipts are not written", "read-only"),
    ]
