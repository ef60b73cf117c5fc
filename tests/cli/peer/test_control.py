"""Test an owner's control of the peer on this machine: commands, limits in files, its page, and its log.

Limits of a running peer are tested with `rollcast peer join`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from peer.donor.control.control import Control
from rollcast.cli.peer import control
from rollcast.cli.peer import logs as peer_logs
from rollcast.cli.peer.limits import reset, set_, show
from rollcast.cli.peer.logs import followed, log_file, logs, readable, tail
from rollcast.cli.peer.page import page
from rollcast.runtime.errors import ConfigError, DaemonAway, MalformedMessage, RunFolderError
from rollcast.wire.joining.error_json import error_to_json
from tests.cli.peer.test_screen import REPORT


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, dict[str, Any]]]:
    """Replace the daemon by one that answers as if it ran, and return its requests."""
    questions: list[tuple[Path, dict[str, Any]]] = []

    def answer(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
        questions.append((folder, values))
        return REPORT if values["do"] == "status" else {"state": "paused", "reason": "paused by its owner"}

    monkeypatch.setattr(control, "request", answer)
    return questions


def test_a_status_is_a_screen_or_one_json_object(
    asked: list[tuple[Path, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert control.status(state=Path("/s")) == 0
    assert capsys.readouterr().out.startswith("generating - 4 rollouts")
    assert control.status(state=Path("/s"), json_output=True) == 0
    assert json.loads(capsys.readouterr().out) == REPORT
    assert asked == [(Path("/s"), {"do": "status"})] * 2


def test_a_pause_may_end_by_itself(
    asked: list[tuple[Path, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert control.pause(for_="2h", state=Path("/s")) == 0
    assert control.resume(state=Path("/s")) == 0
    assert control.finish(state=Path("/s"), json_output=True) == 0
    assert [values for _, values in asked] == [{"do": "pause", "for_s": 7200.0}, {"do": "resume"}, {"do": "finish"}]
    assert capsys.readouterr().out.splitlines()[0] == "paused - paused by its owner"
    with pytest.raises(ConfigError):
        control.pause(for_="soon", state=Path("/s"))


def test_daemon_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    error = error_to_json(RunFolderError("cannot write", fix="free some space"))
    monkeypatch.setattr(control, "request", lambda folder, values: {"error": error})
    with pytest.raises(RunFolderError, match="free some space"):
        control.resume(state=Path("/s"))
    monkeypatch.setattr(control, "request", lambda folder, values: {"error": "?"})
    with pytest.raises(MalformedMessage):
        control.resume(state=Path("/s"))


def test_missing_daemon_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DaemonAway):
        control.status(state=tmp_path)


def test_a_status_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom rollcast.cli.main import app\n"
        f"try:\n    app(['peer', 'status', '--state', {str(tmp_path)!r}], exit_on_error=False)\n"
        "except Exception as error:\n    assert 'no peer runs' in str(error), error\n"
        "heavy = {'jax', 'grpc', 'aiohttp', 'numpy', 'pydantic', 'google.protobuf', 'cryptography', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    config = tmp_path / "peer.toml"
    config.write_text(
        f'state_folder = "{tmp_path}/state"\n[limits]\nupload_gb_month = 5\n[link]\nupload_mbit_s_max = 20\n'
    )
    return {"config": config}


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return dict(json.loads(capsys.readouterr().out))


def test_all_limits_are_shown_with_their_meaning(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert show(**places) == 0
    shown = capsys.readouterr().out
    assert "upload_gb_month" in shown
    assert "Monthly upload quota in GB" in shown
    assert "upload_mbit_s_max" in shown
    assert "compute_hours" in shown
    assert "none" in shown


def test_limit_is_set_kept_and_reset(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = places["config"].read_text()
    set_("limits.download_gb_month=7", "link.upload_mbit_s_max=none", **places)
    assert "download_gb_month" in capsys.readouterr().out
    show(**places, json_output=True)
    found = told(capsys)
    assert found["changed"] == ["download_gb_month", "upload_mbit_s_max"]
    limits = found["limits"]
    assert isinstance(limits, dict)
    assert (limits["download_gb_month"], limits["upload_mbit_s_max"], limits["upload_gb_month"]) == (7.0, None, 5.0)
    reset("download_gb_month", **places, json_output=True)
    assert told(capsys)["changed"] == ["upload_mbit_s_max"]
    reset(**places, json_output=True)
    assert told(capsys)["changed"] == []
    assert places["config"].read_text() == text  # the owner's own file is never changed


@pytest.mark.parametrize("assignment", ["nonsense=1", "upload_gb_month=-1", 'compute_hours=["someday"]', "noequals"])
def test_invalid_limits_are_refused(assignment: str, places: dict[str, Path]) -> None:
    with pytest.raises(ConfigError):
        set_(assignment, **places)
    with pytest.raises(ConfigError):
        set_(**places)


LINE = json.dumps(
    {"event": "session opened", "level": "info", "timestamp": "2026-11-22T08:00:00.1Z", "run": "r", "n": 3}
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = log_file(tmp_path)
    found.parent.mkdir()
    found.write_text("".join(f"line {number}\n" for number in range(100)) + LINE + "\n")
    return found


def test_logs_show_the_newest_lines(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(lines=2, state=tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "line 99",
        "2026-11-22 08:00:00 info    session opened  run=r n=3",
    ]
    assert logs(lines=1, state=tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out)["event"] == "session opened"
    assert tail(path, 0) == []
    assert len(tail(path, 1000)) == 101


def test_log_lines_lose_control_characters() -> None:
    assert readable("a\x1b[2Jb\x07") == "a [2Jb "
    assert "\x1b" not in readable(json.dumps({"event": "x\x1b[2J", "peer": "\x1b]0;t"}))


def test_log_is_followed_across_rotation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_missing_log_error_names_other_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_logs, "_SYSTEM_UNIT_FILE", tmp_path / "none")
    with pytest.raises(DaemonAway, match="docker logs"):
        logs(state=tmp_path)


URL = "http://127.0.0.1:7000/#token=secret"


async def test_the_address_is_printed_and_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    async with Control({"page": lambda _: {"url": URL}}).serving(tmp_path):
        assert await asyncio.to_thread(page, state=tmp_path) == 0
        assert capsys.readouterr().out == URL + "\n"
        assert opened == []
        await asyncio.to_thread(page, open_=True, state=tmp_path, json_output=True)
    assert json.loads(capsys.readouterr().out) == {"url": URL}
    assert opened == [URL]
