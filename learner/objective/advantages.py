"""Compute the advantages of learner/objective/objective.py, from shaped rewards. NumPy float64, on the host."""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np

from learner.objective.config import ObjectiveConfig

Array = np.ndarray[Any, Any]


def shaped_rewards(rewards: Array, lengths: Array, completion_tokens_max: int, overlong_share: float) -> Array:
    """Return rewards f64 [sequences], lowered where a completion comes close to the length limit (DAPO, equation 13).

    Within the last overlong_share of completion_tokens_max the penalty grows linearly from 0 to 1.
    """
    buffer_tokens = int(overlong_share * completion_tokens_max)
    if buffer_tokens < 1:
        return rewards.astype(np.float64)
    over = lengths - (completion_tokens_max - buffer_tokens)
    return rewards - np.clip(over / buffer_tokens, 0.0, 1.0)


def advantages(config: ObjectiveConfig, rewards: Array, group_ids: Array) -> Array:
    """Return advantages f64 [sequences] of the configured kind.

    They are zeros with a critic, which computes them per token, and where rewards are left out.
    """
    match config.advantage:
        case "group-normalised":
            return group_normalised(rewards, group_ids, config.advantage_epsilon)
        case "group-mean":
            return group_centred(rewards, group_ids)
        case "leave-one-out":
            return leave_one_out(rewards, group_ids)
        case "batch-normalised":
            return batch_normalised(rewards, config.advantage_epsilon)
        case "batch-mean":
            centred: Array = rewards - rewards.mean()
            return centred
        case "critic" | "none":
            return np.zeros(len(rewards))
        case _:
            assert_never(config.advantage)


def group_centred(rewards: Array, group_ids: Array) -> Array:
    """Return reward - mean of its group (Dr. GRPO, section 3.2); exactly 0 where all rewards of a group are equal."""
    _, first, members, sizes = np.unique(group_ids, return_index=True, return_inverse=True, return_counts=True)
    # The mean of equal numbers may differ from them by a rounding error; the mean of zeros does not.
    shifted = rewards - rewards[first][members]
    centred: Array = shifted - (np.bincount(members, shifted) / sizes)[members]
    return centred


def group_normalised(rewards: Array, group_ids: Array, epsilon: float) -> Array:
    """Return (reward - group mean) / (group standard deviation + epsilon) (GRPO, DeepSeekMath, section 4.1.2)."""
    _, members, sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
    centred = group_centred(rewards, group_ids)
    deviations = np.sqrt(np.bincount(members, centred**2) / sizes)
    normalised: Array = centred / (deviations[members] + epsilon)
    return normalised


def leave_one_out(rewards: Array, group_ids: Array) -> Array:
    """Return reward - mean of the others of its group (RLOO, Ahmadian et al. 2024); 0 in a group of one."""
    _, members, sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
    size = sizes[members]
    corrected: Array = group_centred(rewards, group_ids) * size / np.maximum(size - 1, 1)
    return corrected


def batch_normalised(rewards: Array, epsilon: float) -> Array:
    """Return (reward - batch mean) / (batch standard deviation + epsilon) (REINFORCE++, Hu 2025)."""
    normalised: Array = (rewards - rewards.mean()) / (rewards.std() + epsilon)
    return normalised


def generalised_advantages(
    rewards: Array, values: Array, loss_mask: Array, segments: Array, *, discount: float, gae_lambda: float
) -> Array:
    """Return GAE f64 [rows, time] (Schulman et al. 2016, equation 16) over the trained tokens of each sequence.

    It is 0 elsewhere. Tokens that are not trained on (a tool's output) take no time: the next trained token is the
    next state.

    Args:
        rewards: [rows, time], reward received with the token.
        values: [rows, time], the critic's estimate before the token.
        loss_mask: bool [rows, time].
        segments: i32 [rows, time], number of the token's sequence in the row.
    """
    rows, time = rewards.shape
    result = np.zeros((rows, time))
    next_value, next_advantage, next_segment = np.zeros(rows), np.zeros(rows), np.zeros(rows, segments.dtype)
    for index in range(time - 1, -1, -1):
        goes_on = segments[:, index] == next_segment
        next_value, next_advantage = next_value * goes_on, next_advantage * goes_on
        surprise = rewards[:, index] + discount * next_value - values[:, index]
        here = loss_mask[:, index]
        result[:, index] = np.where(here, surprise + discount * gae_lambda * next_advantage, 0.0)
        next_value = np.where(here, values[:, index], next_value)
        next_advantage = np.where(here, result[:, index], next_advantage)
        next_segment = segments[:, index]
    return result


def whitened(values: Array, loss_mask: Array, epsilon: float) -> Array:
    """Return values normalised to mean 0 and standard deviation 1 over the mask; 0 outside it."""
    chosen = values[loss_mask]
    if not chosen.size:
        return np.zeros_like(values)
    normal: Array = np.where(loss_mask, (values - chosen.mean()) / (chosen.std() + epsilon), 0.0)
    return normal
