from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcast.cli.peer import control
from rollcast.runtime.errors import ConfigError, DaemonAway, MalformedMessage, RunFolderError
from rollcast.wire.joining.error_json import error_to_json
from tests.cli.peer.test_screen import REPORT


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, dict[str, Any]]]:
    """What the daemon is asked; it answers as one that runs."""
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


def test_what_the_daemon_refuses_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    error = error_to_json(RunFolderError("cannot write", fix="free some space"))
    monkeypatch.setattr(control, "request", lambda folder, values: {"error": error})
    with pytest.raises(RunFolderError, match="free some space"):
        control.resume(state=Path("/s"))
    monkeypatch.setattr(control, "request", lambda folder, values: {"error": "?"})
    with pytest.raises(MalformedMessage):
        control.resume(state=Path("/s"))


def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
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
