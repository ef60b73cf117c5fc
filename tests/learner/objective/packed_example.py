"""Make random completions in the reference's form, and packed two or three to a row for the learner's factors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.objective.advantages import advantages, shaped_rewards
from learner.objective.aggregates import token_weights
from learner.objective.config import ObjectiveConfig
from learner.objective.objective import Terms
from tests.learner.objective.reference_objective import LENGTH_LIMIT, Sequence

Array = np.ndarray[Any, Any]

PROMPT = 2  # tokens before each completion, not trained on
TIME = 24
ROWS = ((0, 1, 2), (3, 4), (5, 6, 7))  # which completions share a row
LENGTHS = (3, 5, 1, 8, 2, 4, 7, 6)


def completions(seed: int, spread: float) -> list[Sequence]:
    """Return eight completions in two groups and a group without any spread of rewards; ratios about exp(±spread)."""
    random = np.random.default_rng(seed)
    rewards = (1.0, 0.0, 0.5, 0.5, 0.5, 1.0, 0.0, 0.0)
    groups = (4, 4, 4, 7, 7, 9, 9, 9)
    made = []
    for length, reward, group in zip(LENGTHS, rewards, groups, strict=True):
        behaviour = -random.uniform(0.1, 3.0, length)
        proximal = behaviour + random.normal(0.0, 2.0 * spread, length)
        logprobs = proximal + random.normal(0.0, spread, length)
        reference = logprobs + random.normal(0.0, spread, length)
        worth = random.normal(size=length)
        frozen, teacher = logprobs.copy(), reference[::-1].copy()
        made.append(Sequence(logprobs, frozen, behaviour, proximal, reference, teacher, reward, group, worth))
    return made


def lay_out(values: list[Array]) -> Array:
    """Lay out each completion's values [tokens] in [rows, TIME]; 0 elsewhere."""
    result = np.zeros((len(ROWS), TIME), np.result_type(*values))
    for row, members in enumerate(ROWS):
        start = 0
        for member in members:
            start += PROMPT
            result[row, start : start + LENGTHS[member]] = values[member]
            start += LENGTHS[member]
    return result


def picked(values: Array) -> list[Array]:
    """Invert lay_out."""
    slots = lay_out([np.full(length, index + 1) for index, length in enumerate(LENGTHS)])
    return [values[slots == index + 1] for index in range(len(LENGTHS))]


def sequence_numbers() -> Array:
    """Return i32 [rows, TIME]: row * 3 + place in the row, prompts included, -1 after the last."""
    result = np.full((len(ROWS), TIME), -1, np.int32)
    for row, members in enumerate(ROWS):
        start = 0
        for place, member in enumerate(members):
            end = start + PROMPT + LENGTHS[member]
            result[row, start:end] = row * 3 + place
            start = end
    return result


def terms_of(config: ObjectiveConfig, sequences: list[Sequence]) -> Terms:
    """Return the learner's terms for these completions, in float32."""
    lengths = np.array(LENGTHS)
    rewards = np.array([one.reward for one in sequences])
    groups = np.array([one.group for one in sequences])
    rewards = shaped_rewards(rewards, lengths, LENGTH_LIMIT, config.overlong_share)
    worth = advantages(config, rewards, groups)
    weights = token_weights(config, lengths, worth, groups, LENGTH_LIMIT)
    by_token = [np.full(length, one) for length, one in zip(lengths, worth, strict=True)]
    if config.advantage == "critic":
        by_token = [one.token_advantages for one in sequences]
    mask = lay_out([np.ones(length) for length in lengths])

    def f32(values: list[Array]) -> jax.Array:
        return jnp.asarray(lay_out(values), jnp.float32)

    return Terms(
        logprobs=f32([one.logprobs for one in sequences]),
        entropies=jnp.full(mask.shape, 0.25, jnp.float32),
        behaviour_logprobs=f32([one.behaviour for one in sequences]),
        advantages=f32(by_token),
        loss_mask=jnp.asarray(mask, jnp.float32),
        weights=f32([np.full(length, one) for length, one in zip(lengths, weights, strict=True)]),
        sequence=jnp.asarray(sequence_numbers()),
        sequences=3 * len(ROWS),
        proximal_logprobs=f32([one.proximal for one in sequences]),
        reference_logprobs=f32([one.reference for one in sequences]),
        teacher_logprobs=f32([one.teacher for one in sequences]),
    )
