"""Test the core's settings made from a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from coordinator.shell.core_settings import core_settings
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from tests.coordinator.core_world import SAMPLING
from tests.coordinator.running import changed, config_for

SECRET = bytes(range(32))


def test_seeds_follow_from_the_runs_secret_and_its_seed(tmp_path: Path) -> None:
    configs = [config_for(tmp_path, Identity.generate(), changed(run={"seed": seed})) for seed in (7, 8)]
    made = [
        core_settings(config, RunId("run-1"), SAMPLING, vocabulary_size=9, seed_secret=secret).seed
        for config in (*configs, configs[0])
        for secret in (SECRET, bytes(32))
    ]
    assert made[:2] == made[4:]
    assert len(set(made)) == 4


def test_core_settings_match_the_configuration(tmp_path: Path) -> None:
    relay = {"mesh_peers_max": 3, "dial_back": False, "dial_back_networks": ["198.51.100.0/24"]}
    config = config_for(tmp_path, Identity.generate(), changed(relay=relay, run={"publish_every_steps": "auto"}))
    settings = core_settings(config, RunId("run-1"), SAMPLING, vocabulary_size=9, seed_secret=SECRET)
    assert settings.publish_every_steps == 0
    assert settings.plan_shape.mesh_peers_max == 3
    assert not settings.dial_backs.enabled
    assert settings.dial_backs.networks == ("198.51.100.0/24",)
    assert settings.vocabulary_size == 9


@pytest.mark.parametrize(("mode", "tokens"), [("finish", 1000), ("continue", 1000), ("keep", 0)])
def test_no_other_peer_continues_a_rollout_that_keeps_its_cache(tmp_path: Path, mode: str, tokens: int) -> None:
    lease = {"at_version_swap": mode, "partial_tokens_max": 1000}
    config = config_for(tmp_path, Identity.generate(), changed(lease=lease))
    assert (
        core_settings(config, RunId("run-1"), SAMPLING, vocabulary_size=9, seed_secret=SECRET).partial_tokens_max
        == tokens
    )


def test_networks_to_dial_back_in_are_networks(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="dial_back_networks"):
        config_for(tmp_path, Identity.generate(), changed(relay={"dial_back_networks": ["everywhere"]}))
