from __future__ import annotations

import json

import pytest

from bench.__main__ import main


def test_it_times_status_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["startup", "--repeats", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["status_heavy_imports"] == 0, "it must answer at once"
    assert 0 < figures["status_ms"] <= figures["status_ms_max"]
    assert figures["help_cpu_ms"] > 0
