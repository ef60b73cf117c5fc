from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config.config import CoordinatorConfig
from rollcast.cli.files import config_class, guess_role, load
from rollcast.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("[coordinator.run]\nsteps = 3", "up"),
        ("peers = 2\n[learner.optimiser]\nlearning_rate = 0.1", "up"),
        ("[run]\nsteps = 3", "coordinator"),
        ("[optimiser]\nlearning_rate = 0.1", "learner"),
        ("[engine]\nconcurrent_rollouts = 3", "peer"),
    ],
)
def test_the_role_follows_from_the_sections(tmp_path: Path, text: str, role: str) -> None:
    file = tmp_path / "some.toml"
    file.write_text(text)
    assert guess_role(file) == role
    assert isinstance(load(file, guess_role(file)), config_class(guess_role(file)))


def test_file_that_fits_no_role_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[nonsense]\na = 1")
    with pytest.raises(ConfigError, match="cannot tell which process"):
        guess_role(file)


def test_an_unknown_key_names_the_command_that_lists_those_of_the_role(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[run]\nstps = 3")
    with pytest.raises(ConfigError, match="problem") as caught:
        load(file, "coordinator")
    assert "`rollcast config show --role coordinator` lists every key" in caught.value.fix


def test_settings_go_on_top_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[run]\nsteps = 3\nseed = 9")
    config = load(file, "coordinator", ["run.steps=5"])
    assert isinstance(config, CoordinatorConfig)
    assert (config.run.steps, config.run.seed) == (5, 9)


def test_a_demand_of_the_planner_is_named_as_one(tmp_path: Path) -> None:
    file = tmp_path / "demand.toml"
    file.write_text("[demand]\nrollouts_per_step = 3\n[lengths]\n")
    with pytest.raises(ConfigError, match="is a demand for the planner") as caught:
        load(file, "up")
    assert f"`rollcast capacity plan --demand {file}`" in caught.value.fix
