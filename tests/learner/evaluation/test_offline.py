from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.config import LearnerConfig
from learner.evaluation.offline import evaluate_run
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import CheckpointError, ConfigError, RunFolderError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb

MODEL = ModelConfig(
    vocabulary_size=12, layers=1, width=16, query_heads=2, key_value_heads=1, head_size=8, feed_forward_width=16
)


def save_checkpoint(folder: Path) -> None:
    checkpoints = Checkpoints(RunFolder(folder).prepare().checkpoints, keep=2)
    host = HostState(
        step=7,
        newest_version=7,
        run_id="run",
        epoch=0,
        seed=1,
        tokenizer_json="{}",
        model_json=MODEL.model_dump_json(),
        base_hash="",
        sampling={"temperature": 1.0, "max_new_tokens": 3, "stop_token_ids": [1]},
        prompt_tokens_max=4,
        trained_ranges=[],
        figures={},
    )
    # Settings other than the defaults, as a run may have them.
    trainer = Trainer(MODEL, LearnerConfig.model_validate({"seed": 4, "optimiser": {"learning_rate": 1e-5}}))
    checkpoints.begin(host, trainer.begin_save).commit()


def problems(count: int) -> list[pb.Example]:
    return [pb.Example(example_id=index, prompt_token_ids=[2 + index, 3]) for index in range(min(count, 3))]


def third_is_easy(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
    """Score problem 0 as never right, problem 1 only at the first of eight samples, and problem 2 as always right."""
    scores = []
    for completion in completions:
        assert 1 <= len(completion.token_ids) <= 3
        assert completion.keep
        assert completion.version == 7
        exact = completion.example_id == 2 or (completion.example_id == 1 and completion.sample_index == 0)
        scores.append(pb.CompletionScore(example_id=completion.example_id, exact=exact))
    return scores


def test_the_newest_checkpoint_is_measured_without_bias(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    reported: list[tuple[str, int, int]] = []
    result = evaluate_run(
        tmp_path,
        {"held_out": problems(3)},
        samples=8,
        pass_at=(1, 8),
        score=third_is_easy,
        progress=lambda *one: reported.append(one),
    )
    found = result.sets["held_out"]
    assert found.pass_at[1].mean == pytest.approx((0 + 1 / 8 + 1) / 3)
    assert found.pass_at[8].mean == pytest.approx(2 / 3)
    assert found.pass_at[8].low < 2 / 3 < found.pass_at[8].high == 1.0
    assert (found.problems, found.samples, result.step) == (3, 8, 7)
    assert result.seconds > 0.0
    assert reported[-1] == ("held_out", 3, 3)


def test_evaluations_that_cannot_be_measured_are_refused(tmp_path: Path) -> None:
    def evaluate(samples: int = 8, folder: Path = tmp_path) -> None:
        evaluate_run(folder, {"held_out": problems(3)}, samples=samples, pass_at=(1, 8), score=third_is_easy)

    with pytest.raises(RunFolderError, match="holds no run"):
        evaluate(folder=tmp_path / "none")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        evaluate()
    RunFolder(tmp_path).prepare()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        evaluate()
    with pytest.raises(ConfigError, match="pass@8"):
        evaluate(samples=4)
