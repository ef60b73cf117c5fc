"""Test that local processes meet the contract of providers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from capacity.providers.base import WorkerTag
from capacity.providers.config import ProviderConfigs
from capacity.providers.local import LocalProvider
from tests.capacity.providers.conformance import DEADLINE_S, Setting, check
from tests.capacity.providers.pool_machines import machines
from tests.capacity.providers.workers import SLEEPER, kill_all, saw


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)


async def test_it_meets_the_contract(folder: Path) -> None:
    three = machines({"worker_id": "local", "count": 3, "start": "local"})
    one, two = (LocalProvider("local", three, ProviderConfigs(), folder, program=SLEEPER) for _ in range(2))
    await check(Setting(one, two, lambda tag: saw(folder, tag)))


async def test_a_worker_has_a_folder_and_a_configuration_of_its_own(folder: Path) -> None:
    configs = {"peer": {"engine": {"concurrent_rollouts": 4}}, "local": {"peer": {"link": {"region": "lab"}}}}
    config = ProviderConfigs.model_validate(configs)
    (machine,) = machines({"worker_id": "local-1", "start": "local", "egress_usd_per_gb": 0.1})
    provider = LocalProvider("local", [machine], config, folder, program=SLEEPER)
    tag = WorkerTag("run-1", "local-1", 7)
    await provider.start(tag, "invite", deadline_s=DEADLINE_S)
    await provider.stop(tag, deadline_s=DEADLINE_S)
    config = tomllib.loads((folder / str(tag) / "peer.toml").read_text())
    assert config["state_folder"] == str(folder / str(tag) / "state")
    assert (config["name"], config["engine"]) == ("local-1.7", {"concurrent_rollouts": 4})
    assert config["link"] == {"region": "lab", "lan_exempt": False, "upload_mbit_s_max": 40.0}
    from peer.config import PeerConfig

    PeerConfig.model_validate(config)
    assert json.loads((folder / str(tag) / "process.json").read_text())["pid"] > 0
