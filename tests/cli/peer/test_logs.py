from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

from rollcast.cli.peer import logs as peer_logs
from rollcast.cli.peer.logs import followed, log_file, logs, readable, tail
from rollcast.runtime.errors import DaemonAway

LINE = json.dumps(
    {"event": "session opened", "level": "info", "timestamp": "2026-11-22T08:00:00.1Z", "run": "r", "n": 3}
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = log_file(tmp_path)
    found.parent.mkdir()
    found.write_text("".join(f"line {number}\n" for number in range(100)) + LINE + "\n")
    return found


def test_the_newest_lines(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(lines=2, state=tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "line 99",
        "2026-11-22 08:00:00 info    session opened  run=r n=3",
    ]
    assert logs(lines=1, state=tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["event"] == "session opened"
    assert tail(path, 0) == []
    assert len(tail(path, 1000)) == 101


def test_no_stranger_moves_our_cursor() -> None:
    assert readable("a\x1b[2Jb\x07") == "a [2Jb "
    assert "\x1b" not in readable(json.dumps({"event": "x\x1b[2J", "peer": "\x1b]0;t"}))


def test_it_is_followed_into_the_next_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_logs, "_LOOK_S", 0.01)
    found: list[str] = []
    enough = threading.Event()

    def read() -> None:
        with contextlib.closing(followed(path)) as lines:
            for line in lines:
                found.append(line)
                if len(found) == 3:
                    break
        enough.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while not found:
        with path.open("a") as file:
            file.write("new\n")
        enough.wait(0.05)
    path.rename(path.with_name("peer.log.1"))
    path.write_text("after\nand more\n")
    assert enough.wait(10.0)
    assert "after" in found or found == ["new"] * 3


def test_without_a_log_it_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_logs, "_SYSTEM_UNIT_FILE", tmp_path / "none")
    with pytest.raises(DaemonAway, match="docker logs"):
        logs(state=tmp_path)
