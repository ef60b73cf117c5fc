"""Test the coordinator's configuration: defaults, metrics sinks, and invalid configurations of providers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.config.config import RunConfig
from coordinator.config.fleet import ProvidersConfig
from coordinator.config.sinks import MetricsConfig
from peer.config import PeerConfig

HOST = {"id": "box", "address": "box.example"}


def test_kind_selects_the_configuration_class() -> None:
    pools = [
        {"kind": "local", "workers": 2},
        {"kind": "ssh", "hosts": [HOST]},
        {"kind": "sky", "offers": [{"id": "a"}]},
    ]
    config = ProvidersConfig.model_validate({"pools": pools})
    assert [pool.worker_ids() for pool in config.pools] == [["local-1", "local-2"], ["box"], ["a-1"]]


@pytest.mark.parametrize(
    ("pools", "what"),
    [
        ([{"kind": "local"}, {"kind": "local"}], "the name local"),
        ([{"kind": "ssh", "hosts": [HOST, HOST]}], "the worker box"),
        ([{"kind": "local"}, {"kind": "ssh", "hosts": [{**HOST, "id": "local-1"}]}], "the worker local-1"),
        ([{"kind": "ssh", "hosts": []}], "at least 1 item"),
        ([{"kind": "local", "egress_usd_per_gb": 0.1}], "needs upload_mbit_per_second"),
        ([{"kind": "cloud"}], "does not match any of the expected tags"),
    ],
)
def test_invalid_values_are_refused(pools: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ProvidersConfig.model_validate({"pools": pools})


def test_documented_example_is_valid() -> None:
    text = (Path(__file__).parents[3] / "docs" / "providers.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    config = ProvidersConfig.model_validate(tomllib.loads(example)["providers"])
    assert [pool.kind for pool in config.pools] == ["local", "ssh", "sky"]
    PeerConfig.model_validate(config.peer)


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
