from __future__ import annotations

import pytest
from pydantic import BaseModel

from capacity.inputs.demand_file import STALENESS_SYNONYMS, DemandFile, DemandSection, EngineSection, LengthsSection
from capacity.inputs.demand_file import topology_named as named
from capacity.model.topologies import Topology
from rollcast.runtime.config import describe, parse_config
from rollcast.runtime.errors import ConfigError

LEAST = {"model": "qwen3-4b", "rollouts_per_step": 8, "t_train_s": 10, "learner_upload_mbit_per_second": 100}


def parsed(**changes: object) -> DemandFile:
    return parse_config({"demand": {**LEAST, "staleness_limit": 2, **changes}}, DemandFile, source="demand.toml")


def test_a_minimal_demand_file() -> None:
    assert (parsed().demand.publish_every_steps, parsed().lengths.distribution) == (1, "deepseek-r1")


@pytest.mark.parametrize("section", [DemandSection, LengthsSection, EngineSection])
def test_every_key_has_a_meaning(section: type[BaseModel]) -> None:
    for key, _, meaning in describe(section):
        assert meaning, key


@pytest.mark.parametrize("name", STALENESS_SYNONYMS)
def test_other_systems_names_of_s_are_understood(name: str) -> None:
    file = parse_config({"demand": {**LEAST, name: 5}}, DemandFile, source="demand.toml")
    assert file.demand.staleness_limit == 5
    with pytest.raises(ConfigError, match="give one"):
        parsed(**{name: 5})


def test_names_that_count_something_else_are_refused() -> None:
    with pytest.raises(ConfigError, match="queued batches"):
        parsed(max_batches_offpolicy=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": "ring"}, "no topology is called 'ring'"),
        ({"topology": "stripes=0"}, "no topology"),
        ({"t_train_s": 0}, "t_train_s"),
        ({"t_train_s": float("inf")}, "t_train_s"),
        ({"t_train_s": float("nan")}, "t_train_s"),
        ({"update_bytes": float("inf")}, "update_bytes"),
        ({"model": "measured"}, "needs update_bytes"),
        ({"t_trains": 3}, "did you mean 't_train_s'"),
        ({"headroom": 0.9}, "headroom"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(**changes)


def test_topologies_by_name() -> None:
    for topology in (Topology("stripes", 4), Topology("tree"), Topology("chain"), Topology("star")):
        assert str(named(str(topology))) == str(topology)
