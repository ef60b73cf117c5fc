"""Test supervised training from a file to a model's folder: its loss, its stops and resumes, its refusals."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import OptimiserConfig
from learner.evaluation.offline import load_policy
from learner.supervised.config import SftConfig
from learner.supervised.examples import read_examples, read_tokenizer
from learner.supervised.service import run, train
from learner.supervised.session import Plan
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import CheckpointError, ModelError, TaskError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from tests.wire.text.hub_tokenizer_files import tokenizer_folder

MODEL = {"layers": 1, "width": 16, "query_heads": 2, "key_value_heads": 1, "head_size": 8, "feed_forward_width": 16}


def configured(folder: Path, **values: Any) -> SftConfig:
    rows = [{"prompt": f"{number % 7}+1=", "completion": str(number % 7 + 1)} for number in range(40)]
    data = folder / "data.jsonl"
    if not data.exists():
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "model": MODEL,
        "run_folder": folder / "run",
        "data": {"path": data, "held_out_share": 0.1} | values.pop("data", {}),
        "epochs": 2,
        "row_tokens": 16,
        "batch_rows": 4,
        "held_out_every_steps": 100,
        "optimiser": {"learning_rate": 0.01, "micro_batch_tokens": 64, "schedule": "linear"},
        "checkpoint": {"every_steps": 2},
    }
    return SftConfig.model_validate(given | values)


def trained(config: SftConfig, stop_after: int = 0) -> bool:
    """Train, and stop after so many steps of this life; 0: never."""
    stop, taken = threading.Event(), []

    def count(values: Mapping[str, Any]) -> None:
        taken.append(values["step"])
        if len(taken) == stop_after:
            stop.set()

    def make(model: ModelConfig, optimiser: OptimiserConfig | None = None, /) -> Trainer:
        return Trainer(model, config.learner().model_copy(update={"optimiser": optimiser}))

    return train(config, make, count, stop)


def metrics(config: SftConfig) -> list[dict[str, Any]]:
    lines = map(json.loads, RunFolder(config.run_folder).metrics.read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "tokens_per_s"} for line in lines]


def test_training_lowers_the_loss_and_its_model_can_be_loaded(tmp_path: Path) -> None:
    config = configured(tmp_path, export=tmp_path / "model")
    assert asyncio.run(run(config, asyncio.Event())) == 0
    summary = json.loads(RunFolder(config.run_folder).summary.read_text())
    assert summary["held_out_loss"] < summary["held_out_loss_before"] - 0.3
    assert (summary["rows"], summary["rows_left_out"], summary["examples_trained"]) == (40, 0, 36)
    assert HubTokenizer(tmp_path / "model").encode("3+1=") == read_tokenizer(config).encode("3+1=")
    steps = metrics(config)
    assert [line["step"] for line in steps] == list(range(1, 11))
    assert [line["learning_rate"] for line in (steps[0], steps[-1])] == pytest.approx([0.01, 0.0019], rel=1e-3)
    assert trained(config)  # all is done, its export too
    with pytest.raises(ModelError, match="exists already"):  # another run's model, which was reported as this one's
        trained(config.model_copy(update={"run_folder": tmp_path / "other"}))


def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = configured(tmp_path)
    parts = whole.model_copy(update={"run_folder": tmp_path / "parts"})
    assert trained(whole)
    assert not trained(parts, stop_after=3)
    lost = RunFolder(parts.run_folder).metrics
    lost.write_text(lost.read_text() + '{"step":4,"loss":9.0}\n')  # of a process that was killed before its checkpoint
    assert trained(parts)
    assert metrics(parts) == metrics(whole)
    (first, one), (second, other) = load_policy(whole.run_folder), load_policy(parts.run_folder)
    assert first.step == second.step
    assert all(np.array_equal(one[name], other[name]) for name in one)
    with pytest.raises(CheckpointError, match="other examples or settings"):
        trained(parts.model_copy(update={"seed": 5}))


def test_only_answers_count_and_rows_are_shared(tmp_path: Path) -> None:
    config = configured(tmp_path)
    tokenizer = read_tokenizer(config)
    examples = read_examples(config, tokenizer)
    plan = Plan.of(config, examples.all)
    batch = plan.batch(0)
    assert batch.tokens.shape == (4, 16)
    assert batch.segments.max() > 1
    answers = {tuple(batch.tokens[row][batch.loss_mask[row]]) for row in range(4)}
    assert {tokenizer.decode([token]) for one in answers for token in one} <= set("12345678") | {""}
    assert plan.held_out is not None
    assert len(plan.examples) == 36


def test_chats_are_read_with_the_models_template(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "model")
    chat = {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "12"}]}
    (tmp_path / "data.jsonl").write_text((json.dumps(chat) + "\n") * 3)
    config = configured(tmp_path, init_from=folder)
    first, *_others = read_examples(config, read_tokenizer(config)).all
    assert first.trained.tolist() == [False] * 4 + [True] * 2
    with pytest.raises(ValueError, match="remove tokenizer"):
        configured(tmp_path, init_from=folder, tokenizer=folder)


def test_bad_rows_are_counted_named_and_bounded(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "1", "completion": "2"}) + "\n"
    bad = ["{", '{"prompt": "1"}', json.dumps({"prompt": "1", "completion": "2" * 99}), '{"messages": []}']
    (tmp_path / "data.jsonl").write_text(good * 8 + "\n".join(bad) + "\n")
    config = configured(tmp_path, data={"bad_rows_share_max": 0.4})
    found = read_examples(config, read_tokenizer(config))
    assert (found.rows, len(found.all), sum(found.bad.values())) == (12, 8, 4)
    assert found.named[0].startswith(f"{tmp_path / 'data.jsonl'}, line 9: not JSON")
    assert "'completion' is missing or not a text" in found.named[1]
    assert "more tokens than row_tokens = 16 (101 tokens)" in found.named[2]
    assert "chat template" in found.named[3]
    with pytest.raises(TaskError, match="4 of 12 rows") as caught:
        read_examples(configured(tmp_path), read_tokenizer(config))
    assert "1 x not JSON" in caught.value.cause
    (tmp_path / "data.jsonl").write_text("")
    with pytest.raises(TaskError, match="0 of 0 rows"):
        read_examples(config, read_tokenizer(config))
