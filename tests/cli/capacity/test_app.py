"""Test `rollcast capacity` as a whole, and the commands that docs/capacity.md shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from capacity.inputs.demand_file import STALENESS_SYNONYMS, DemandFile
from capacity.inputs.pool.checks import check_pool
from capacity.inputs.pool.files import rows_of_csv
from capacity.replan.event_files import read_events
from rollcast.cli.capacity.app import app as capacity
from rollcast.cli.main import app
from rollcast.runtime.config import parse_config

PAGE = (Path(__file__).parents[3] / "docs" / "capacity.md").read_text()

COMMANDS = re.findall(r"^    (?:\$ )?(rollcast capacity .+?)(?:\s+#.*|\s+> .*)?$", PAGE, re.MULTILINE)

BLOCKS = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE)


def block(start: str) -> str:
    found = next(one for one in BLOCKS if one.strip().startswith(start))
    return "\n".join(line.removeprefix("    ") for line in found.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_typed(command: str) -> None:
    app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def test_a_run_takes_s_and_kappa_under_the_names_that_plans_have() -> None:
    words = ["capacity", "set", "--staleness", "3", "--kappa", "2"]
    bound = app.parse_args(words, exit_on_error=False, print_error=False)[1]
    assert bound.arguments == {"staleness_limit": 3, "publish_every_steps": "2"}


def test_there_are_some_and_none_is_left_out() -> None:
    assert len(COMMANDS) >= 10
    for name in capacity:
        if not name.startswith("-"):
            assert f"`{name}" in PAGE, name


def test_documented_pool_example_is_valid() -> None:
    pool = check_pool(rows_of_csv(block("worker_id,"), "docs"))
    assert (len(pool.taken), pool.skipped) == (2, ())


def test_documented_demand_example_is_valid() -> None:
    parse_config(tomllib.loads(block("[demand]")), DemandFile, source="docs")


def test_documented_record_example_is_valid(tmp_path: Path) -> None:
    lines = [line for line in block('{"at_s"').splitlines() if line.startswith("{")]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    assert len(read_events(tmp_path / "trace.jsonl")) == 5


def test_every_name_of_s_is_in_the_dictionary() -> None:
    for name in STALENESS_SYNONYMS:
        assert f"`{name}`" in PAGE


def test_every_command_can_be_imported_and_has_help() -> None:
    for name in ("offers", "plan", "explain", "what-if", "replan", "calibrate", "validate", "diff", "schema"):
        assert capacity[name].help


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


def test_plan_imports_no_slow_package() -> None:
    code = "import sys, rollcast.cli.capacity.plan\nprint({'aiohttp', 'matplotlib', 'grpc', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "set()\n"
