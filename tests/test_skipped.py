"""Test that what a first run skipped is what a second one runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import skipped

ROOT = Path(__file__).parents[1]


def test_skipped_tests_and_modules_are_written_a_line_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(skipped, "_skipped", {})
    place = ("tests/test_a.py", 1, "test_it")

    def report(name: str, outcome: str) -> pytest.TestReport:
        return pytest.TestReport(f"tests/test_a.py::{name}", place, {}, outcome, None, "setup")  # type: ignore[arg-type]

    for one in (report("without_torch", "skipped"), report("fine", "passed"), report("without_torch", "skipped")):
        skipped.pytest_runtest_logreport(one)
    expected = report("known_to_fail", "skipped")
    expected.wasxfail = "a reason"  # type: ignore[attr-defined]
    skipped.pytest_runtest_logreport(expected)
    skipped.pytest_collectreport(pytest.CollectReport("tests/test_b.py", "skipped", None, []))
    assert list(skipped._skipped) == ["tests/test_a.py::without_torch", "tests/test_b.py"]


def test_continuous_integration_runs_both_commands_where_no_extra_is_installed() -> None:
    """The extras are installed elsewhere meanwhile, and what was skipped runs there."""
    script = re.sub(r"\\\n", " ", (ROOT / ".ci" / "run").read_text())
    first = [line for line in script.splitlines() if line.startswith(("make demo", "make test"))]
    (again,) = (line for line in script.splitlines() if "@$skipped" in line)
    installed = [line for line in script.splitlines() if re.search(r"\bpip\b.* install ", line)]
    assert len(first) == 2
    assert not [line for line in first if ".venv-extras" in line]
    assert installed
    assert all("--python .venv-extras/bin/python" in line for line in installed)
    assert "TEST_PYTHON=.venv-extras/bin/python" in again
