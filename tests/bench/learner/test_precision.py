"""Test the error figures of lower precision, and the search for settings in which it does harm."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import jax
import pytest

from bench.learner import precision
from bench.learner.demonstration import Course, Demonstration
from bench.learner.precision_search import FLOWS, SETTINGS, Kept, configured, figures
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig
from rollcast.policy.params import initial_params
from rollcast.wire.rollouts import Sampling
from tests.compiling import OPTIMISED
from tests.policy.tiny import TINY


def courses(name: str, after: dict[str, list[float]]) -> dict[tuple[str, str], list[Course]]:
    return {(name, flow): [Course(0.25, one, {}) for one in after[flow]] for flow in FLOWS}


def test_harm_is_what_naive_loses_against_bf16_with_every_seed() -> None:
    found = figures(
        courses("harmed", {"bf16": [0.9, 0.8], "unified": [0.89, 0.8], "naive": [0.6, 0.7]})
        | courses("mixed", {"bf16": [0.9, 0.8], "unified": [0.9, 0.8], "naive": [0.6, 0.8]})
    )
    assert found["harmed"] == 1.0
    assert found["harm_most"] == pytest.approx(0.2)
    assert found["unified_behind_most"] == pytest.approx(0.005)
    assert found["harmed_naive"] == pytest.approx(0.65)
    assert found["mixed_before"] == 0.25


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_problems_to_train_on(name: str, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    config = load(Path("configs/local.toml"), "up", [])
    assert isinstance(config, UpConfig)
    demonstration = Demonstration(configured(config, SETTINGS[name]), 1, tmp_path)
    assert len(demonstration.held_out_prompts(8)) == 8


def test_a_kept_training_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    training = {"setting": "weak", "seed": 1}
    assert Kept(path).find(training) is None
    Kept(path).add(training, Course(0.25, 0.5, {"kl_k3": 0.1}))
    again = Kept(path)
    assert again.find(training) == Course(0.25, 0.5, {"kl_k3": 0.1})
    assert again.find(training | {"seed": 2}) is None


@pytest.mark.slow  # tests/policy/test_snapshot.py compares the logits of both
def test_a_snapshot_in_e4m3_is_the_learners_own_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=OPTIMISED))
    config = TINY.model_copy(update=precision.FLOWS["unified"] | {"layers": 1})
    found = precision.mismatch(config, initial_params(config, 0), [(1, 2, 3), (4, 5)] * 4, Sampling(1.0, 6, ()))
    assert found["identical"] == 1.0
    assert 0.0 <= found["mean"] <= found["p99"] < 0.1
    assert found["outside"] == 0.0


def test_every_flow_of_the_table_is_a_precision_of_the_model() -> None:
    carriers = [TINY.model_validate(TINY.model_dump() | flow).carrier_dtype for flow in precision.FLOWS.values()]
    assert carriers == ["float32", "bfloat16", "float32", "bfloat16", "bfloat16"]


def test_a_number_of_settings_starts_a_search() -> None:
    parser = argparse.ArgumentParser()
    precision.add_arguments(parser)
    assert not parser.parse_args([]).search
    assert parser.parse_args(["--search", "12"]).search == 12 == len(SETTINGS)
    with pytest.raises(SystemExit):
        parser.parse_args(["--search", "many"])
