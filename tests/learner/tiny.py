"""Make a trainer small enough to compile in seconds, and batches for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.config import LearnerConfig, OptimiserConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

MODEL = ModelConfig(
    vocabulary_size=9, layers=1, width=16, query_heads=2, key_value_heads=1, head_size=8, feed_forward_width=16
)
CONFIG = LearnerConfig(seed=1, optimiser=OptimiserConfig(learning_rate=3e-3, micro_batch_tokens=24))
TIME = 6


def tiny_trainer(config: LearnerConfig = CONFIG) -> Trainer:
    return Trainer(MODEL, config)


def copied_state(trainer: Trainer) -> dict[str, np.ndarray[Any, Any]]:
    """Return a trainer's state as copies on the host, which later steps do not change."""
    return {name: np.array(leaf) for name, leaf in trainer.state().items()}


def tiny_row(index: int, completion: tuple[int, ...], reward: float, *versions: int) -> TrainingRow:
    """Return a rollout with one token a segment; ``versions`` repeats its last element."""
    made_by = [*versions, *versions[-1:] * len(completion)] or [0] * len(completion)
    segments = tuple(
        Segment("assistant", Epoch(0), Version(version), PeerId("p"), pack_ids((token,)), b"\x01")
        for token, version in zip(completion, made_by, strict=False)
    )
    return TrainingRow(index, index // 4, (2, 3 + index // 4), segments, 1.0, reward)


def tiny_batch(rewards: Sequence[float], *, versions: Sequence[int] = (0,)) -> PackedBatch:
    """Return one row a reward, in groups of four, with different completions."""
    rows = [
        tiny_row(index, (4 + index % 4, 3 + index % 5, 1), reward, versions[index % len(versions)])
        for index, reward in enumerate(rewards)
    ]
    return pack(rows, time=TIME, objective=ObjectiveConfig(), completion_tokens_max=4)
