from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import LearnerConfig
from learner.training.starting_model import keep_small_files, starting_model, starting_params
from learner.training.trainer import Trainer
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
