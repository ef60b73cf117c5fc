"""Test what commands say in an installation that lacks packages of extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollcast.cli.start.extras import extras_with, missing_extra

ROOT = Path(__file__).parents[3]
EXTRAS = (
    "flax",
    "jax",
    "jinja2",
    "math_verify",
    "matplotlib",
    "optax",
    "orbax",
    "reasoning_gym",
    "scipy",
    "tokenizers",
)
BARE = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # importing any of them fails
from rollcast.cli.main import main
main()
"""


def run_bare(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command where no package of an extra can be imported."""
    return subprocess.run(
        (sys.executable, "-c", BARE, *words), cwd=ROOT, capture_output=True, text=True, timeout=60.0, check=False
    )


def test_packages_lead_to_their_extras() -> None:
    assert extras_with("optax") == ["learner"]
    assert extras_with("reasoning_gym") == ["coordinator"]
    assert {"learner", "peer"} <= set(extras_with("jax"))
    assert extras_with("orbax") == ["learner"]
    assert extras_with("numpy") == extras_with("nowhere") == extras_with("") == []


def test_the_extra_is_that_of_the_package_which_imports() -> None:
    scope = {"__name__": "learner.evaluation"}
    with pytest.raises(ImportError) as caught:
        exec("import jax.nowhere_at_all", scope)
    found = missing_extra(caught.value)
    assert found is not None
    assert "learner" in found.fix
    assert found.cause == "the package jax is missing"


def test_other_errors_of_imports_are_none_of_an_extra() -> None:
    assert missing_extra(ImportError("cannot import name 'x'")) is None
    assert missing_extra(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


@pytest.mark.parametrize("words", [("doctor", "coordinator", "--json"), ("plan-memory", "configs/local.toml")])
def test_what_is_asked_before_anything_is_installed_needs_no_extra(words: tuple[str, ...]) -> None:
    done = run_bare(*words)
    assert "this command needs packages" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout


def test_a_command_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    done = run_bare("export", str(tmp_path), str(tmp_path / "model"))
    assert done.returncode == 69
    assert done.stderr.startswith("RC105: this command needs packages that are not installed")
    assert "[learner]" in done.stderr
