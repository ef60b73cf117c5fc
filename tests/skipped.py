"""Write the tests that a run skipped to a file, as a pytest plugin: `-p tests.skipped --skipped-to FILE`.

In an environment with more packages `pytest @FILE` runs exactly these. `.ci/run` does so, because a whole second run
with every extra would take as long as the first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_skipped: dict[str, None] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped-to", type=Path, help="write the ids of skipped tests and modules to this file")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a skipped test. The process that distributes tests to workers gets the reports of all."""
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped[report.nodeid] = None


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a module that was skipped as a whole."""
    if report.skipped:
        _skipped[report.nodeid] = None


def pytest_sessionfinish(session: pytest.Session) -> None:
    path: Path | None = session.config.getoption("skipped_to")
    if path is not None and not hasattr(session.config, "workerinput"):
        path.write_text("".join(f"{one}\n" for one in _skipped))
