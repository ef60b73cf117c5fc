from __future__ import annotations

import json

import pytest

from bench.__main__ import main


def test_it_times_whole_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity_cli", "--repeats", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["solve_s"] > 0
    assert figures["plan_cpu_s"] > 0
    assert figures["plan_cold_s"] <= figures["plan_cold_s_max"]
