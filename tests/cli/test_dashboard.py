"""Test the link to the dashboard that `rollcast up` prints, and how a browser receives it.

tests/e2e/test_run.py tests all of `up`.
"""

from __future__ import annotations

import io
import json
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from rollcast.cli.dashboard import dashboard
from rollcast.cli.processes import Endpoints
from rollcast.cli.up import page_address
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder

LINK = "http://127.0.0.1:7401/#token=k-e_y"


def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "operator.key").write_text("k-e_y\n")
    (tmp_path / "endpoints.json").write_text(
        json.dumps({"http_url": "http://127.0.0.1:7401", "page_url": "http://127.0.0.1:7401", "grpc_address": ""})
    )
    return tmp_path


def test_key_is_in_the_fragment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboard(run_folder(tmp_path)) == 0
    assert capsys.readouterr().out == f"{LINK}\n"
    assert urlsplit(LINK).fragment == "token=k-e_y"


def test_browser_gets_a_file_instead_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    dashboard(run_folder(tmp_path), open=True)
    page = tmp_path / "secrets" / "dashboard.html"
    assert opened == [page.as_uri()]
    assert LINK in page.read_text()
    assert page.stat().st_mode & 0o077 == 0


def test_missing_key_or_coordinator_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        dashboard(tmp_path)
    folder = run_folder(tmp_path)
    (folder / "secrets" / "operator.key").unlink()
    with pytest.raises(RunFolderError):
        dashboard(folder)


ENDPOINTS = Endpoints("http://127.0.0.1:7401", "127.0.0.1:7400", "http://127.0.0.1:7401")


def test_key_is_printed_on_terminals_only(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "operator.key").write_text("k")
    (tmp_path / "endpoints.json").write_text(
        json.dumps({"http_url": ENDPOINTS.http_url, "page_url": ENDPOINTS.http_url, "grpc_address": ""})
    )
    folder = RunFolder(tmp_path)
    terminal, file = Console(file=io.StringIO(), force_terminal=True), Console(file=io.StringIO())
    assert page_address(terminal, folder, ENDPOINTS) == f"{ENDPOINTS.http_url}/#token=k"
    assert page_address(file, folder, ENDPOINTS) == ENDPOINTS.http_url
