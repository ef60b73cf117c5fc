"""Every shipped configuration parses, and is one of the processes that README names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcast.cli.files import guess_role, load

CONFIGS = Path(__file__).parents[2] / "configs"
ROLES = {
    "local.toml": "up",
    "qwen3-4b-math.toml": "up",
    "coordinator.toml": "coordinator",
    "learner.toml": "learner",
    "origin.toml": "peer",
    "peer.toml": "peer",
}


#: Not of a process: what `rollcast capacity` plans for (tests/capacity/questions/test_scenario.py).
OTHERS = {"demand.toml"}


def test_none_is_forgotten() -> None:
    assert {path.name for path in CONFIGS.glob("*.toml")} == {*ROLES, *OTHERS}


@pytest.mark.parametrize("name", ROLES)
def test_parses_as_the_process_it_is_for(name: str) -> None:
    path = CONFIGS / name
    assert guess_role(path) == ROLES[name]
    load(path, guess_role(path))
