"""Run a whole train step on random rollouts, and time a matrix product to compare with."""

from __future__ import annotations

import argparse
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

from learner.config import LearnerConfig
from learner.objective.config import ObjectiveConfig
from learner.training.packing import PackedBatch, TrainingRow, pack
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids

HEAD_SIZE = 64
PROMPT_TOKENS = 16


class Step:
    """A trainer and one batch for it."""

    def __init__(self, arguments: argparse.Namespace, precision: str) -> None:
        heads = max(2, arguments.width // HEAD_SIZE)
        self.model = ModelConfig(
            vocabulary_size=arguments.vocabulary,
            layers=arguments.layers,
            width=arguments.width,
            query_heads=heads,
            key_value_heads=heads // 2,
            head_size=HEAD_SIZE,
            feed_forward_width=3 * arguments.width,
            precision=precision,
        )
        optimiser = {"micro_batch_tokens": arguments.micro_batch_tokens}
        config = LearnerConfig.model_validate({"optimiser": optimiser, "remat": arguments.remat})
        self.trainer = Trainer(self.model, config)
        self.batch = random_batch(arguments.rows, arguments.row_tokens, arguments.vocabulary)
        self._behaviour = np.where(self.batch.loss_mask, -math.log(arguments.vocabulary), 0.0).astype(np.float32)

    def run(self) -> None:
        """Run one step and wait for its end."""
        self.trainer.train_step(self.batch, self._behaviour)
        jax.block_until_ready(self.trainer.params())


def random_batch(rows: int, row_tokens: int, vocabulary: int) -> PackedBatch:
    """Return random rollouts that fill their rows, in groups of four."""
    random = np.random.default_rng(0)
    length = row_tokens - PROMPT_TOKENS

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(random.integers(0, vocabulary, count).tolist())

    rollouts = [
        TrainingRow(
            rollout_id=index,
            group_id=index // 4,
            prompt_token_ids=tokens(PROMPT_TOKENS),
            segments=(
                Segment("assistant", Epoch(0), Version(0), PeerId("p"), pack_ids(tokens(length)), b"\x01" * length),
            ),
            temperature=1.0,
            reward=float(index % 2),
        )
        for index in range(rows)
    ]
    return pack(rollouts, time=row_tokens, objective=ObjectiveConfig(), completion_tokens_max=length)


def matmul_seconds(size: int, precision: str) -> float:
    """Return the least seconds of a few products of two square matrices."""
    left = jnp.ones((size, size), jnp.dtype(precision))
    product = jax.jit(jnp.matmul)
    product(left, left).block_until_ready()
    times_s = []
    for _ in range(5):
        started_s = time.perf_counter()
        product(left, left).block_until_ready()
        times_s.append(time.perf_counter() - started_s)
    return min(times_s)
