from __future__ import annotations

import subprocess
import sys

import pytest

from rollcast.cli.capacity.app import app


def test_every_command_can_be_imported_and_says_what_it_is_for() -> None:
    for name in ("offers", "plan", "explain", "what-if", "replan", "calibrate", "validate", "diff", "schema"):
        assert app[name].help


def test_help_imports_neither_scipy_nor_matplotlib() -> None:
    code = (
        "import sys\nfrom rollcast.cli.main import app\n"
        "try:\n    app(['capacity', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'scipy', 'matplotlib', 'jax', 'aiohttp'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "what-if" in result.stdout


@pytest.mark.parametrize("module", ["aiohttp", "matplotlib", "grpc", "jax"])
def test_a_plan_needs_none_of_what_is_slow_to_import(module: str) -> None:
    code = f"import sys, rollcast.cli.capacity.plan\nassert {module!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
