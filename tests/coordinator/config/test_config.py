"""Test the coordinator's configuration: defaults, metrics sinks, and invalid configurations of providers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from coordinator.config.config import CoordinatorConfig, RunConfig
from coordinator.config.fleet import ProvidersConfig
from coordinator.config.sinks import MetricsConfig
from coordinator.core.leases.stages import LengthStage
from coordinator.fleet.machines import read_machines
from coordinator.fleet.providers import make_providers
from coordinator.shell.core_settings import core_settings
from peer.config import PeerConfig
from rollcast.wire.ids import RunId
from rollcast.wire.rollouts import Sampling


def test_a_plan_of_providers_needs_speeds() -> None:
    for given in ({"pool": "pool.csv"}, {"demand": "demand.toml"}):
        with pytest.raises(ValidationError, match="pool and demand are needed together"):
            ProvidersConfig.model_validate(given)
    assert ProvidersConfig.model_validate({"pool": "pool.csv", "want": "apply"}).demand is None


def test_documented_example_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "providers.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (pool,) = re.findall(r"```csv\n(.*?)```", text, re.DOTALL)
    config = ProvidersConfig.model_validate(tomllib.loads(example)["providers"])
    PeerConfig.model_validate(config.peer)
    (tmp_path / "pool.csv").write_text(pool)
    machines = read_machines(tmp_path / "pool.csv", Path(__file__).parents[3] / "configs" / "demand.toml")
    assert list(make_providers(machines, config, tmp_path)) == ["local", "ssh", "sky-gcp"]
    assert all(machine.worker.speeds for machine in machines)


def test_limit_below_the_publication_period_is_refused() -> None:
    assert RunConfig(staleness_limit=2, publish_every_steps=3).staleness_limit == 2
    with pytest.raises(ValidationError, match="staleness_limit = 1 cannot be kept with publish_every_steps = 3"):
        RunConfig(staleness_limit=1, publish_every_steps=3)


def test_age_max_exceeds_s_only_with_policy_correct() -> None:
    assert RunConfig(staleness_limit=4, late_steps_max=3).age_max == 4
    assert RunConfig(staleness_limit=4, late_steps_max=3, late_policy="correct").age_max == 7


@pytest.mark.parametrize("sinks", [["file"], ["tensorboard", "tensorboard"], ["wandb", "tensorboard", "wandb"]])
def test_unknown_and_repeated_sinks_are_refused(sinks: list[str]) -> None:
    with pytest.raises(ValidationError):
        MetricsConfig.model_validate({"sinks": sinks})


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        ([{"name": "a", "from_step": 5}], "the first begins at from_step = 0"),
        ([{"name": "a", "from_step": 0}, {"name": "b", "from_step": 0}], "out of order"),
        ([{"name": "a", "from_step": 0, "new_tokens_max": 9}], "above sampling.new_tokens_max = 8"),
        (
            [{"name": "a", "from_step": 0}, {"name": "b", "from_step": 9, "new_tokens_max": 4}],
            "falls from one stage to the next",
        ),
        ([{"name": "a", "from_step": 0, "pass_rate_min": 0.9, "pass_rate_max": 0.1}], "is above pass_rate_max"),
        ([{"name": "a", "from_step": 0}, {"name": "b"}], "set exactly one of the two"),
        ([{"name": "a", "from_step": 0, "until_steps": 9}, {"name": "b", "from_step": 9}], "set exactly one"),
        ([{"name": "a", "from_step": 0, "until_reward": 0.5}], "no stage follows a"),
        (
            [{"name": "a", "from_step": 0, "until_steps": 9}, {"name": "b"}, {"name": "c", "from_step": 50}],
            "begins at no fixed step",
        ),
    ],
)
def test_stages_that_do_not_go_together_are_refused(stages: list[dict[str, object]], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        CoordinatorConfig.model_validate({"sampling": {"new_tokens_max": 8}, "stages": stages})


def test_stages_reach_the_core() -> None:
    stages = [
        {"name": "a", "from_step": 0, "new_tokens_max": 4, "until_reward": 0.8, "until_steps": 9},
        {"name": "b", "pass_rate_max": 0.9},
    ]
    config = CoordinatorConfig.model_validate({"sampling": {"new_tokens_max": 8}, "stages": stages})
    made = core_settings(config, RunId("run"), Sampling(1.0, 8, (1,)), vocabulary_size=9, seed_secret=b"s" * 32)
    assert made.stages == (LengthStage("a", 0, 4, 0.8, 9, 8), LengthStage("b", None, 8, reward_steps=8))
    assert made.staged_prompts


def test_a_batch_of_episodes_that_cannot_be_open_at_once_is_refused() -> None:
    given = {
        "run": {"groups_per_step": 64, "samples_per_group": 32},
        "task": {"kind": "gym", "path": "game.py:Guess"},
    }
    assert CoordinatorConfig.model_validate(given).environments.episodes_max == 4096
    with pytest.raises(ValidationError, match=r"set environments\.episodes_max to 4096 at least"):
        CoordinatorConfig.model_validate(given | {"environments": {"episodes_max": 4095}})
    single = {"run": given["run"], "environments": {"episodes_max": 1}}
    assert CoordinatorConfig.model_validate(single).environments.episodes_max == 1, "no task has an environment"
