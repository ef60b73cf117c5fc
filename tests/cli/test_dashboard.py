"""Test the link to the dashboard that `rollcast up` prints, and how a browser receives it.

tests/e2e/test_run.py tests all of `up`.
"""

from __future__ import annotations

import io
import json
import threading
import webbrowser
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from rollcast.cli import dashboard as command
from rollcast.cli.dashboard import dashboard
from rollcast.cli.processes import Endpoints
from rollcast.cli.up import page_address
from rollcast.runtime.errors import RunFolderError, RunOver, Unreachable
from rollcast.runtime.run_folder import RunFolder
from rollcast.web.headers import RUN_HEADER


class Coordinator(BaseHTTPRequestHandler):
    """Answers as the coordinator of the run run-1 does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header(RUN_HEADER, "run-1")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Coordinator) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def run_folder(tmp_path: Path, url: str, run_id: str = "run-1") -> Path:
    (tmp_path / "secrets").mkdir(exist_ok=True)
    (tmp_path / "secrets" / "operator.key").write_text("k-e_y\n")
    endpoints = {"http_url": url, "page_url": url, "grpc_address": "", "run_id": run_id}
    (tmp_path / "endpoints.json").write_text(json.dumps(endpoints))
    return tmp_path


def test_key_is_in_the_fragment(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboard(run_folder(tmp_path, url)) == 0
    said = capsys.readouterr()
    link = said.out.removesuffix("\n")
    assert said.err == ""
    assert link == f"{url}/#token=k-e_y"
    assert urlsplit(link).fragment == "token=k-e_y"


def test_a_page_with_the_runs_own_certificate_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "fetch_sync", lambda *_: {})
    dashboard(run_folder(tmp_path, "https://192.0.2.2:7401"))
    said = capsys.readouterr()
    assert said.out == "https://192.0.2.2:7401/#token=k-e_y\n"
    assert str(tmp_path / "ca.pem") in said.err


def test_browser_gets_a_file_instead_of_the_key(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    dashboard(run_folder(tmp_path, url), open=True)
    page = tmp_path / "secrets" / "dashboard.html"
    assert opened == [page.as_uri()]
    assert f"{url}/#token=k-e_y" in page.read_text()
    assert page.stat().st_mode & 0o077 == 0


def test_no_link_leads_to_another_run_or_to_nothing(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Unreachable, match="is not running") as caught:
        dashboard(run_folder(tmp_path, url, "run-0"))
    assert "run-1 has its address" in caught.value.cause
    with pytest.raises(Unreachable, match="no coordinator answers") as caught:
        dashboard(run_folder(tmp_path, "http://127.0.0.1:1"))
    assert caught.value.cause == "Connection refused"
    (tmp_path / "summary.json").write_text('{"phase": "finished", "ended_because": "finished"}')
    with pytest.raises(RunOver, match="is over") as over:
        dashboard(run_folder(tmp_path, "http://127.0.0.1:1"))
    assert (over.value.cause, "rollcast report" in over.value.fix) == ("it ended: finished", True)
    assert capsys.readouterr().out == ""


def test_missing_key_or_coordinator_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as caught:
        dashboard(tmp_path)
    assert "`rollcast dashboard RUN`" in caught.value.fix, "it has no option --run-folder"
    folder = run_folder(tmp_path, "http://127.0.0.1:1")
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
