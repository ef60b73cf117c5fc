"""What docs/models.md tells people to type is understood."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from learner.config import LearnerConfig
from rollcast.cli.main import app
from rollcast.cli.up_config import UpConfig
from rollcast.policy.published import ARCHITECTURES

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "rollcast"
    app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_configurations_are_valid() -> None:
    by_file = {"learner.toml": LearnerConfig, "run.toml": UpConfig}
    blocks = re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert {name for name, _ in blocks} == set(by_file)
    for name, text in blocks:
        by_file[name].model_validate(tomllib.loads(text))


def test_every_preset_is_on_the_page() -> None:
    table = "".join(line for line in PAGE.splitlines() if line.startswith("|"))
    assert set(ARCHITECTURES) == {name for name in re.findall(r"`([a-z0-9.-]+)`", table) if "-" in name}
