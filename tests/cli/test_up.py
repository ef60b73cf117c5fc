"""What `rollcast up` tells of its page; the whole of it is tested in tests/e2e/test_run.py."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from rollcast.cli.processes import Endpoints
from rollcast.cli.up import page_address
from rollcast.runtime.run_folder import RunFolder

ENDPOINTS = Endpoints("http://127.0.0.1:7401", "127.0.0.1:7400")


def test_only_a_terminal_is_told_the_key(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "operator.key").write_text("k")
    (tmp_path / "endpoints.json").write_text(json.dumps({"http_url": ENDPOINTS.http_url, "grpc_address": ""}))
    folder = RunFolder(tmp_path)
    terminal, file = Console(file=io.StringIO(), force_terminal=True), Console(file=io.StringIO())
    assert page_address(terminal, folder, ENDPOINTS) == f"{ENDPOINTS.http_url}/#token=k"
    assert page_address(file, folder, ENDPOINTS) == ENDPOINTS.http_url
