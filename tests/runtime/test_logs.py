from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest
import structlog

from rollcast.runtime.logs import configure_logging, recent_lines


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
