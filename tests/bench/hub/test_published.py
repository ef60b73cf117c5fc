"""Test the way of a published model: its folder, a run's settings, and the export beside what peers hold."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.hub import published
from bench.hub.small_model import MODEL, SYSTEM_PROMPT, question, sums, write_problems, write_tokenizer, write_weights
from bench.machine import Outcome
from learner.config import LearnerConfig
from learner.evaluation.export import export
from learner.training.starting_model import keep_small_files, starting_model, starting_params
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig
from rollcast.policy.params import initial_params
from rollcast.runtime.install import install_command
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Version
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from rollcast.wire.text.tokenizer import read_record
from tests.learner.evaluation.test_export import publish

RECIPE = Path("configs/qwen3-4b-math.toml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an untaught model and problems."""
    root = tmp_path_factory.mktemp("published")
    (root / "model").mkdir()
    write_tokenizer(root / "model")
    write_weights(root / "model", initial_params(MODEL, seed=1))
    write_problems(root / "sums.jsonl", sums(1)[:4])
    return root


def test_the_small_model_has_what_published_models_have(folder: Path) -> None:
    model = folder / "model"
    tokenizer = HubTokenizer(model, ChatSettings(system=SYSTEM_PROMPT))
    assert tokenizer.size == MODEL.vocabulary_size > len(json.loads((model / "tokenizer.json").read_text())["model"])
    assert len(tokenizer.stop_ids) == 2
    assert tokenizer.decode(tokenizer.encode_prompt(question((12, 34)))) == f"<|im_start|>system\n{SYSTEM_PROMPT}"
    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2
    assert "lm_head.weight" not in index
    assert json.loads((model / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_problems_are_right_and_each_occurs_once(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "sums.jsonl").read_text().splitlines()]
    (left, right), *_ = sums(1)
    assert rows[0] == {"prompt": f"What is {left}+{right}?", "answer": str(left + right)}
    assert len(set(sums(1))) == 8100


def test_the_run_is_the_recipes_with_other_sizes(folder: Path) -> None:
    config = load(RECIPE, "up", published.scaled_down(folder, 3))
    assert isinstance(config, UpConfig)
    recipe = load(RECIPE, "up")
    assert isinstance(recipe, UpConfig)
    assert config.learner.objective == recipe.learner.objective
    assert config.learner.model == recipe.learner.model
    assert config.coordinator.selection == recipe.coordinator.selection
    assert config.coordinator.tokenizer.arguments == published.TEMPLATE_ARGUMENTS
    assert config.coordinator.tokenizer.system_prompt == SYSTEM_PROMPT
    assert (config.coordinator.run.steps, config.learner.warm_start.steps_max) == (3, 0)


def test_transformers_answers_from_an_export_as_peers_do(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model_folder = folder / "model"
    config = LearnerConfig.model_validate({"init_from": model_folder, "model": {"precision": "bfloat16"}})
    model = starting_model(config, read_record(HubTokenizer(model_folder).to_json()))
    keep_small_files(config, RunFolder(tmp_path / "run").model)
    publish(tmp_path / "run", model, starting_params(config, model), Version(2))
    export(tmp_path / "run", tmp_path / "exported", version=2, file_bytes_max=200_000)
    answers = published.peers_answers(tmp_path / "run", Version(2), model_folder, sums(1)[:4])
    figures = published.agreement(tmp_path / "exported", answers)
    assert figures["export_equal"] == 1.0
    assert 0.0 < figures["export_logprob_difference_max"] < 1e-4
    other = replace(answers[0], exact=replace(answers[0].exact, token_ids=(1,)))
    assert published.agreement(tmp_path / "exported", [other])["export_equal"] == 0.0
    asked = replace(answers[0], problem="What is 1?")
    assert published.agreement(tmp_path / "exported", [asked])["export_equal"] == 0.0


SUMMARY: dict[str, Any] = {
    "run_folder": "run",
    "version": 3,
    "reward_before": 0.3,
    "reward_after": 0.9,
    "wall_s": 80.0,
    "staleness_max_trained": 3,
    "rollouts": {"issued": 10, "trained": 6, "turns": 0, "open": 1, "dropped": {"stale": 2}},
}


def outcome(*given: str) -> Outcome:
    parser = argparse.ArgumentParser()
    published.add_arguments(parser)
    return published.run(parser.parse_args(given))


def test_what_needs_torch_is_missing_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_torch(*_given: Any) -> dict[str, float]:
        raise ImportError("no module named torch")

    monkeypatch.setattr(published, "write_taught_model", lambda *_given: 0.3)
    monkeypatch.setattr(published.runs, "run", lambda *_given: SUMMARY)
    for name in ("export", "peers_answers"):
        monkeypatch.setattr(published, name, lambda *_given: None)
    monkeypatch.setattr(published, "agreement", without_torch)
    found = outcome("--steps", "3")
    assert found.missing == published.EXPORT_KEYS
    assert found.figures["rollouts_unaccounted"] == 1
    assert (found.figures["reward_before"], found.figures["reward_after"]) == (0.3, 0.9)
    assert install_command("torch") in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_a_published_model_learns_and_comes_back() -> None:
    figures = outcome("--steps", "20").figures
    assert figures["reward_after"] > figures["reward_before"] + 0.2
    assert figures["export_equal"] == 1.0
    assert figures["export_logprob_difference_max"] < 1e-4
    assert figures["rollouts_unaccounted"] == 0
