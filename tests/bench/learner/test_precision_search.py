from __future__ import annotations

from pathlib import Path

import pytest

from bench.learner.demonstration import Course, Demonstration
from bench.learner.precision_search import FLOWS, SETTINGS, Kept, configured, figures
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig


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


def test_a_training_that_was_kept_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    training = {"setting": "weak", "seed": 1}
    assert Kept(path).find(training) is None
    Kept(path).add(training, Course(0.25, 0.5, {"kl_k3": 0.1}))
    again = Kept(path)
    assert again.find(training) == Course(0.25, 0.5, {"kl_k3": 0.1})
    assert again.find(training | {"seed": 2}) is None
