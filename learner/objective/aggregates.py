"""Compute the aggregate of learner/objective/objective.py: the weight of each sequence's tokens in the loss.

NumPy float64, on the host. Arguments named lengths are i64 [sequences], the number of trained tokens of each, and times
f64 [sequences], how often each counts; results are f64 [sequences], the weight of each of its tokens.
"""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np

from learner.objective.config import ObjectiveConfig

Array = np.ndarray[Any, Any]


def token_weights(
    config: ObjectiveConfig,
    lengths: Array,
    advantages: Array,
    group_ids: Array,
    completion_tokens_max: int,
    times: Array | None = None,
) -> Array:
    """Return the token weights f64 [sequences] of the configured kind.

    Args:
        advantages: [sequences]; with dynamic sampling, a group whose advantages are all 0 counts as absent. A sequence
            that happens to have its group's mean reward counts all the same: its tokens are in the denominator of DAPO
            (equation 8), which leaves out whole groups only (section 3.2).
        group_ids: i64 [sequences], the prompt group of each.
        completion_tokens_max: length of the longest possible completion.
        times: f64 [sequences], how often each sequence counts (learner/objective/selection.py); None: once.
    """
    counted = lengths > 0
    if config.dynamic_sampling:
        counted &= np.isin(group_ids, group_ids[advantages != 0.0])
    often = np.where(counted, 1.0 if times is None else times, 0.0)
    match config.aggregate:
        case "token-mean":
            weights = token_mean(lengths, often)
        case "trajectory-mean":
            weights = trajectory_mean(lengths, often)
        case "constant-length":
            weights = constant_length(often, completion_tokens_max)
        case _:
            assert_never(config.aggregate)
    return weights


def token_mean(lengths: Array, times: Array) -> Array:
    """Weigh every trained token of the batch equally (DAPO, section 3.3)."""
    return times / max(float((times * lengths).sum()), 1.0)


def trajectory_mean(lengths: Array, times: Array) -> Array:
    """Weigh every sequence equally, and the tokens within it equally (GRPO, DeepSeekMath, equation 3)."""
    return times / (max(float(times.sum()), 1.0) * np.maximum(lengths, 1))


def constant_length(times: Array, tokens: int) -> Array:
    """Divide each sequence's sum by a constant, so that its length has no influence (Dr. GRPO, section 3.2)."""
    return times / (max(float(times.sum()), 1.0) * tokens)
