"""What a configuration of providers may not be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coordinator.config.fleet import ProvidersConfig
from peer.config import PeerConfig

HOST = {"id": "box", "address": "box.example"}


def test_each_kind_is_told_by_its_kind() -> None:
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
def test_what_cannot_be_is_refused(pools: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ProvidersConfig.model_validate({"pools": pools})


def test_the_example_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "providers.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    config = ProvidersConfig.model_validate(tomllib.loads(example)["providers"])
    assert [pool.kind for pool in config.pools] == ["local", "ssh", "sky"]
    PeerConfig.model_validate(config.peer)
