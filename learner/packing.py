"""Training rollouts to fixed-shape arrays: right-padded rows of prompt and completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from learner.advantages import advantages, shaped_rewards
from learner.aggregates import token_weights
from learner.objective_config import ObjectiveConfig
from rollcast.wire.rollouts import Segment

# Version of tokens that no policy made: prompts, tools, padding.
NO_VERSION = -1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One scored rollout of a batch."""

    rollout_id: int
    group_id: int
    prompt_token_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    temperature: float
    reward: float


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows of a batch; [rows, time] unless said otherwise."""

    tokens: Array  # i32, right-padded with 0
    positions: Array  # i32, index in the row
    segments: Array  # i32, 0 on padding, 1 .. for the sequences of a row
    loss_mask: Array  # bool, tokens that are trained on
    token_versions: Array  # i64, version that made the token, NO_VERSION where none did
    temperature: Array  # f32 [rows]
    advantages: Array  # f32, of the token's sequence; 0 where a critic tells them
    rewards: Array  # f32, the sequence's at its last trained token
    weights: Array  # f32, what a token counts in the mean over the batch
    sequences_per_row: int = 1  # upper bound of segments

    def select(self, rows: Array) -> PackedBatch:
        """The given rows (indices) as a batch of their own; weights stay those of the whole."""
        arrays = {name: leaf[rows] for name, leaf in self._leaves() if isinstance(leaf, np.ndarray)}
        return replace(self, **arrays)

    def _leaves(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def versions(self) -> list[int]:
        """Versions that made the trained tokens, oldest first."""
        return sorted(int(version) for version in np.unique(self.token_versions[self.loss_mask]))


def pack(
    rows: Sequence[TrainingRow], *, time: int, objective: ObjectiveConfig, completion_tokens_max: int
) -> PackedBatch:
    """Lay out a batch in rows of ``time`` tokens, with rewards, advantages and weights as the objective says.

    completion_tokens_max: longest completion that there may be.

    Raises:
        ValueError: a rollout is longer than ``time``, or a loss mask does not match its tokens.
    """
    tokens = np.zeros((len(rows), time), np.int32)
    segments = np.zeros((len(rows), time), np.int32)
    loss_mask = np.zeros((len(rows), time), bool)
    versions = np.full((len(rows), time), NO_VERSION, np.int64)
    for index, row in enumerate(rows):
        end = len(row.prompt_token_ids) + sum(len(segment.token_ids) for segment in row.segments)
        if end > time:
            raise ValueError(f"rollout {row.rollout_id} has {end} tokens, more than {time}")
        tokens[index, : len(row.prompt_token_ids)] = row.prompt_token_ids
        segments[index, :end] = 1
        _pack_segments(row, tokens[index], loss_mask[index], versions[index])
    scored = score(rows, loss_mask.sum(axis=1), objective, completion_tokens_max)
    last = loss_mask & (np.cumsum(loss_mask, axis=1) == loss_mask.sum(axis=1, keepdims=True))
    return PackedBatch(
        tokens=tokens,
        positions=np.where(segments > 0, np.arange(time, dtype=np.int32), 0),
        segments=segments,
        loss_mask=loss_mask,
        token_versions=versions,
        temperature=np.array([row.temperature for row in rows], np.float32),
        advantages=(scored.advantages[:, None] * loss_mask).astype(np.float32),
        rewards=(scored.rewards[:, None] * last).astype(np.float32),
        weights=(scored.weights[:, None] * loss_mask).astype(np.float32),
    )


@dataclass(frozen=True, slots=True)
class Scored:
    """What the objective makes of a batch's rewards; f64 [rollouts] each."""

    rewards: Array  # shaped
    advantages: Array
    weights: Array  # of each trained token


def score(
    rows: Sequence[TrainingRow], lengths: Array, objective: ObjectiveConfig, completion_tokens_max: int
) -> Scored:
    """Rewards, advantages and weights of rollouts with so many trained tokens (i64 [rollouts])."""
    raw = np.array([row.reward for row in rows], np.float64)
    groups = np.array([row.group_id for row in rows], np.int64)
    rewards = shaped_rewards(raw, lengths, completion_tokens_max, objective.overlong_share)
    worth = advantages(objective, rewards, groups)
    return Scored(rewards, worth, token_weights(objective, lengths, worth, completion_tokens_max))


def _pack_segments(row: TrainingRow, tokens: Array, loss_mask: Array, versions: Array) -> None:
    start = len(row.prompt_token_ids)
    for segment in row.segments:
        end = start + len(segment.token_ids)
        if len(segment.loss_mask) != len(segment.token_ids):
            raise ValueError(f"rollout {row.rollout_id}: loss mask and tokens of a segment differ in length")
        tokens[start:end] = segment.token_ids
        trained = np.frombuffer(segment.loss_mask, np.uint8).astype(bool)
        loss_mask[start:end] = trained
        versions[start:end] = np.where(trained, segment.version, NO_VERSION)
        start = end


def pack_examples(examples: Sequence[tuple[Sequence[int], Sequence[int]]], *, time: int) -> PackedBatch:
    """Lay out supervised examples (prompt ids, answer ids); answers are trained on, advantages are 0.

    Raises:
        ValueError: an example is longer than ``time``.
    """
    tokens = np.zeros((len(examples), time), np.int32)
    segments = np.zeros((len(examples), time), np.int32)
    loss_mask = np.zeros((len(examples), time), bool)
    for index, (prompt, answer) in enumerate(examples):
        start, end = len(prompt), len(prompt) + len(answer)
        if end > time:
            raise ValueError(f"an example of {end} tokens, more than {time}")
        tokens[index, :start], tokens[index, start:end] = prompt, answer
        segments[index, :end] = 1
        loss_mask[index, start:end] = True
    return PackedBatch(
        tokens=tokens,
        positions=np.where(segments > 0, np.arange(time, dtype=np.int32), 0),
        segments=segments,
        loss_mask=loss_mask,
        token_versions=np.full((len(examples), time), NO_VERSION, np.int64),
        temperature=np.ones(len(examples), np.float32),
        advantages=np.zeros(loss_mask.shape, np.float32),
        rewards=np.zeros(loss_mask.shape, np.float32),
        weights=(loss_mask / max(loss_mask.sum(), 1)).astype(np.float32),
    )
