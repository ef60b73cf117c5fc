from __future__ import annotations

import argparse

import pytest

from bench.learner import precision
from bench.learner.precision_search import SETTINGS
from rollcast.policy.params import initial_params
from rollcast.wire.rollouts import Sampling
from tests.policy.tiny import TINY


def test_a_snapshot_in_e4m3_is_the_learners_own_forward_pass() -> None:
    config = TINY.model_copy(update=precision.FLOWS["unified"] | {"layers": 1})
    found = precision.mismatch(config, initial_params(config, 0), [(1, 2, 3), (4, 5)] * 4, Sampling(1.0, 6, ()))
    assert found["identical"] == 1.0
    assert 0.0 <= found["mean"] <= found["p99"] < 0.1
    assert found["outside"] == 0.0


def test_every_flow_of_the_table_is_a_precision_of_the_model() -> None:
    carriers = [TINY.model_validate(TINY.model_dump() | flow).carrier_dtype for flow in precision.FLOWS.values()]
    assert carriers == ["float32", "bfloat16", "float32", "bfloat16", "bfloat16"]


def test_a_search_is_asked_for_by_a_number_of_settings() -> None:
    parser = argparse.ArgumentParser()
    precision.add_arguments(parser)
    assert not parser.parse_args([]).search
    assert parser.parse_args(["--search", "12"]).search == 12 == len(SETTINGS)
    with pytest.raises(SystemExit):
        parser.parse_args(["--search", "many"])
