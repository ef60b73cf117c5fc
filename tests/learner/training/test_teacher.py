"""Test distillation from a teacher that the learner holds on its devices."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from learner.config import LearnerConfig, OptimiserConfig, TeacherConfig
from learner.objective.config import ObjectiveConfig
from learner.training.mesh import make_mesh
from learner.training.starting_model import check_teacher
from learner.training.teacher import Teacher, teacher_model
from learner.training.trainer import Trainer
from rollcast.policy.params import initial_params
from rollcast.runtime.errors import ConfigError, ModelError
from rollcast.wire.text.tokenizer import TokenizerRecord
from tests.learner.tiny import CONFIG, MODEL, tiny_batch
from tests.policy.hub.hub_files import model_folder

TOKENIZER = b'{"model": {}}'


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> LearnerConfig:
    wide = MODEL.model_copy(update={"width": 32, "vocabulary_size": 12})  # of another size, with a padded vocabulary
    params = {name: np.asarray(value) for name, value in initial_params(wide, 9).items()}
    folder = model_folder(tmp_path_factory.mktemp("teacher"), wide, params)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    return CONFIG.model_copy(
        update={
            "teacher": TeacherConfig(folder=folder),
            "objective": ObjectiveConfig(algorithm="distillation"),
            "optimiser": OptimiserConfig(learning_rate=3e-3, micro_batch_tokens=48),
        }
    )


def test_the_policy_approaches_its_teacher_whatever_the_rewards_are(config: LearnerConfig) -> None:
    assert config.teacher is not None
    assert config.teacher.folder is not None
    trainer = Trainer(MODEL, config)
    teacher = Teacher(teacher_model(config.teacher.folder, config), config, make_mesh(config.mesh))
    batch = tiny_batch([0.0] * 8)
    wanted = teacher.logprobs(batch)
    assert np.all(wanted[batch.loss_mask] < 0.0)

    def apart() -> float:
        return float(np.abs(trainer.current(batch).logprobs - wanted)[batch.loss_mask].mean())

    before = apart()
    behaviour = trainer.current(batch).logprobs
    reported = [trainer.train_step(batch, behaviour)["teacher_kl"] for _ in range(12)]
    assert reported[0] == pytest.approx((behaviour - wanted)[batch.loss_mask].mean(), abs=1e-4)
    assert apart() < 0.8 * before


def test_scores_of_an_endpoint_count_as_those_of_a_held_teacher(config: LearnerConfig) -> None:
    held, elsewhere = Trainer(MODEL, config), Trainer(MODEL, config.model_copy(update={"teacher": None}))
    assert config.teacher is not None
    assert config.teacher.folder is not None
    teacher = Teacher(teacher_model(config.teacher.folder, config), config, make_mesh(config.mesh))
    batch = tiny_batch([0.0] * 8)
    behaviour = held.current(batch).logprobs
    own = held.train_step(batch, behaviour)
    assert elsewhere.train_step(batch, behaviour, teacher_logprobs=teacher.logprobs(batch)) == own


def test_a_teacher_must_read_the_runs_tokens(config: LearnerConfig) -> None:
    check_teacher(config, TokenizerRecord(9, hashlib.sha256(TOKENIZER).hexdigest()), 0.7)
    check_teacher(CONFIG, TokenizerRecord(9, ""), 0.7)
    with pytest.raises(ModelError, match="has another tokenizer"):
        check_teacher(config, TokenizerRecord(9, ""), 1.0)
    remote = config.model_copy(update={"teacher": TeacherConfig(endpoint="http://teacher/v1")})
    with pytest.raises(ConfigError, match=r"temperature 0\.7"):
        check_teacher(remote, TokenizerRecord(9, ""), 0.7)


def test_a_teacher_and_its_weight_go_together(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give both or none"):
        LearnerConfig.model_validate({"objective": {"algorithm": "distillation"}})
    with pytest.raises(ValidationError, match="give both or none"):
        LearnerConfig.model_validate({"teacher": {"folder": tmp_path}})
    with pytest.raises(ValidationError, match="set one of the two"):
        TeacherConfig()
