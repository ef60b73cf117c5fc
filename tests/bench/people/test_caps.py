from __future__ import annotations

import json

import pytest

from bench.__main__ import main


def test_it_measures_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caps", "--only", "caps", "--seconds", "0.3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]
    assert set(figures) >= {"error_up", "error_down"}
    for cap in document["settings"]["caps_mbit_s"]:
        assert figures[f"upload_{cap:g}_mbit_s"] > 0
        assert figures[f"download_{cap:g}_mbit_s"] > 0
