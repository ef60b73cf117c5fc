"""Test that what a first run skipped is what a second one runs."""

from __future__ import annotations

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


def test_continuous_integration_runs_both_commands_before_any_extra_is_installed() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    first = {
        start: next(i for i, line in enumerate(lines) if line.startswith(start)) for start in ("make demo", "make test")
    }
    (extras,) = (index for index, line in enumerate(lines) if line.startswith("extra torch,p2p,postgres-server"))
    (again,) = (index for index, line in enumerate(lines) if "@$skipped" in line)
    assert max(first.values()) < extras < again
