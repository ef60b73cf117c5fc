"""Test the models that training begins with: loaded or random."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import LearnerConfig
from learner.training.starting_model import (
    context_warnings,
    keep_small_files,
    rate_warnings,
    starting_model,
    starting_params,
    usual_rate_max,
)
from learner.training.trainer import Trainer
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import initial_params
from rollcast.runtime.errors import ModelError
from rollcast.wire.text.tokenizer import TokenizerRecord
from tests.learner.tiny import MODEL
from tests.policy.hub.hub_files import model_folder, random_params

PARAMS = random_params(MODEL)

TOKENIZER = b'{"model": {}}'

RECORD = TokenizerRecord(MODEL.vocabulary_size, hashlib.sha256(TOKENIZER).hexdigest())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model_folder(tmp_path / "model", MODEL, PARAMS)
    (tmp_path / "model" / "tokenizer.json").write_bytes(TOKENIZER)
    return tmp_path / "model"


def config(**values: Any) -> LearnerConfig:
    return LearnerConfig.model_validate({"model": {"precision": "bfloat16"}, **values})


def test_the_architecture_is_the_folders_and_the_precision_ours(folder: Path) -> None:
    model = starting_model(config(init_from=folder), RECORD)
    assert model == MODEL.model_copy(update={"precision": "bfloat16"})


def test_without_a_folder_the_vocabulary_is_the_tokenizers() -> None:
    plain = config(model={"preset": "qwen3-0.6b"})
    assert starting_model(plain, TokenizerRecord(77, "")) == plain.model.model_copy(update={"vocabulary_size": 77})


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        (TokenizerRecord(MODEL.vocabulary_size + 1, RECORD.sha256), "tokens, the coordinator's"),
        (TokenizerRecord(MODEL.vocabulary_size, "00"), r"tokenizer\.json differ"),
        (TokenizerRecord(MODEL.vocabulary_size, ""), "its task's wording"),
    ],
)
def test_another_tokenizer_than_the_coordinators_is_refused(folder: Path, record: TokenizerRecord, cause: str) -> None:
    with pytest.raises(ModelError, match="another tokenizer") as caught:
        starting_model(config(init_from=folder), record)
    assert cause.replace("\\", "") in caught.value.cause


def rates(learning_rate: float, **values: Any) -> LearnerConfig:
    return config(optimiser={"learning_rate": learning_rate}, **({"warm_start": {"steps_max": 0}} | values))


def test_the_default_rates_suit_published_models(folder: Path) -> None:
    plain = config(init_from=folder, warm_start={"batch_size": 32}, objective={"algorithm": "ppo"})
    assert (plain.warm_start.steps_max, config().warm_start.steps_max) == (0, 800)
    assert rate_warnings(plain, ModelConfig.model_validate({"preset": "qwen3-32b"})) == []


def test_the_demonstrations_rates_are_high_for_a_published_model(folder: Path) -> None:
    model = ModelConfig.model_validate({"preset": "qwen3-4b", "vocabulary_size": 151_936})
    first, critic, warm = rate_warnings(
        rates(
            5e-4,
            init_from=folder,
            objective={"algorithm": "ppo", "critic": {"learning_rate": 1e-3}},
            warm_start={"steps_max": 800},
        ),
        model,
    )
    assert first.startswith("optimiser.learning_rate = 0.0005 is high for a published model of 4,022")
    assert "at most 1e-05" in first
    assert critic.startswith("objective.critic.learning_rate = 0.001")
    assert warm.startswith("warm_start.steps_max = 800 trains the published model")


def test_small_models_take_higher_rates() -> None:
    assert usual_rate_max(300_000) > 5e-4 > usual_rate_max(10**9)
    assert usual_rate_max(10**13) == usual_rate_max(10**10) > 0.0
    assert rate_warnings(rates(5e-4), MODEL) == []
    assert len(rate_warnings(rates(5e-3), MODEL)) == 1
    large = ModelConfig.model_validate({"preset": "qwen3-4b", "vocabulary_size": 151_936})
    assert "for a model of" in rate_warnings(rates(5e-4), large)[0]


def test_rows_beyond_a_published_models_context_are_named(folder: Path) -> None:
    model = ModelConfig.model_validate({"preset": "qwen3-4b"})
    published = config(init_from=folder)
    assert context_warnings(published, model, 40_960) == []
    (warning,) = context_warnings(published, model, 40_961)
    assert "40,961 tokens, but the model's context has 40,960" in warning
    assert context_warnings(config(), model, 40_961) == []


def test_shipped_configurations_set_rates_that_suit_their_models() -> None:
    for file in ("local", "qwen3-4b-math"):
        up = load(Path(f"configs/{file}.toml"), "up", [])
        assert isinstance(up, UpConfig)
        model = up.learner.model.model_copy(update={"vocabulary_size": up.learner.model.vocabulary_size or 64})
        assert rate_warnings(up.learner, model) == []
        assert up.learner.optimiser.learning_rate == {"local": 5e-4, "qwen3-4b-math": 1e-6}[file]


def test_training_starts_from_the_folders_weights(folder: Path) -> None:
    trainer = Trainer(MODEL, config(init_from=folder))
    assert all(np.array_equal(value, PARAMS[name]) for name, value in trainer.params().items())


def test_fresh_parameters_follow_from_the_seed() -> None:
    fresh = starting_params(config(seed=3), MODEL)
    assert all(np.array_equal(fresh[name], value) for name, value in initial_params(MODEL, 3).items())


def test_small_files_are_kept_for_exports(folder: Path, tmp_path: Path) -> None:
    keep_small_files(config(init_from=folder), tmp_path / "run" / "model")
    kept = {path.name for path in (tmp_path / "run" / "model").iterdir()}
    assert kept == {"config.json", "tokenizer.json"}
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["model_type"] == "qwen3"
    keep_small_files(config(), tmp_path / "none")
    assert not (tmp_path / "none").exists()
