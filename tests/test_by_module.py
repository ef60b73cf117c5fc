"""Test that workers which collect module by module run, choose, skip and report as one process does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.by_module import ByModule

ROOT = Path(__file__).parents[1]
HOOK = """
from tests.by_module import ByModule

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(ByModule(config))
"""
MODULES = {
    "a/test_a": """
import pytest

@pytest.fixture(scope="module")
def made():
    made = []
    yield made
    assert len(made) == 2

class TestTwo:
    @pytest.mark.parametrize("letter", "xy")
    def test_each(self, letter, made):
        made.append(letter)

@pytest.mark.slow
def test_alone():
    assert False, "it was run"
""",
    "a/test_absent": "import pytest\npytest.importorskip('a_package_that_nobody_has')",
    "a/test_broken": "import a_package_that_nobody_has",
    "b/test_deselected": "import pytest\n@pytest.mark.slow\ndef test_none(): ...",
    "b/test_b": "def test_passes(): ...\ndef test_fails(): assert False",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, text in {"conftest": HOOK, "a/__init__": "", "b/__init__": "", **MODULES}.items():
        path = (tmp_path / name).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return tmp_path


def outcomes(suite: Path, *arguments: str) -> dict[str, str]:
    """Run pytest with two workers; return the outcome of each test or module that it reports in full."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-rA", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=100, check=False)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    found += [("SKIPPED", path) for path in re.findall(r"^SKIPPED \[1\] (\S+?):", done.stdout, re.MULTILINE)]
    assert done.returncode == (1 if {"FAILED", "ERROR"} & {outcome for outcome, _ in found} else 0), done.stdout
    return {name: outcome for outcome, name in found}


def test_workers_report_what_one_process_would(suite: Path) -> None:
    assert outcomes(suite, "-m", "not slow") == {
        "a/test_a.py::TestTwo::test_each[x]": "PASSED",
        "a/test_a.py::TestTwo::test_each[y]": "PASSED",
        "a/test_absent.py": "SKIPPED",
        "a/test_broken.py": "ERROR",
        "b/test_b.py::test_passes": "PASSED",
        "b/test_b.py::test_fails": "FAILED",
    }


def test_tests_that_the_command_line_names_run_alone(suite: Path) -> None:
    named = ("a/test_a.py::TestTwo", "b/test_b.py::test_passes", "a/test_absent.py")
    assert outcomes(suite, *named) == {
        "a/test_a.py::TestTwo::test_each[x]": "PASSED",
        "a/test_a.py::TestTwo::test_each[y]": "PASSED",
        "a/test_absent.py": "SKIPPED",
        "b/test_b.py::test_passes": "PASSED",
    }


def test_workers_of_this_run_use_the_plugin(request: pytest.FixtureRequest) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    assert hasattr(request.config, "workerinput") == any(isinstance(plugin, ByModule) for plugin in plugins)
