"""Agg of learner/objective/objective.py: how much a trained token of each sequence of a batch counts. NumPy float64.

lengths: i64 [sequences], trained tokens of each. Results: f64 [sequences], the weight of each of its tokens.
"""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np

from learner.objective.config import ObjectiveConfig

Array = np.ndarray[Any, Any]


def token_weights(config: ObjectiveConfig, lengths: Array, advantages: Array, completion_tokens_max: int) -> Array:
    """Weights f64 [sequences] of the configured kind.

    advantages: [sequences]; with dynamic sampling, sequences of no advantage count as if they were not there (DAPO,
    section 3.2). completion_tokens_max: longest completion that there may be.
    """
    counted = lengths > 0
    if config.dynamic_sampling:
        counted &= advantages != 0.0
    kept = np.where(counted, lengths, 0)
    match config.aggregate:
        case "token-mean":
            weights = token_mean(kept)
        case "trajectory-mean":
            weights = trajectory_mean(kept)
        case "constant-length":
            weights = constant_length(kept, completion_tokens_max)
        case _:
            assert_never(config.aggregate)
    return weights * counted


def token_mean(lengths: Array) -> Array:
    """Every trained token of the batch counts the same (DAPO, section 3.3)."""
    return np.full(len(lengths), 1.0 / max(int(lengths.sum()), 1))


def trajectory_mean(lengths: Array) -> Array:
    """Every sequence counts the same, and every token within it (GRPO, DeepSeekMath, equation 3)."""
    sequences = max(int(np.count_nonzero(lengths)), 1)
    return 1.0 / (sequences * np.maximum(lengths, 1))


def constant_length(lengths: Array, tokens: int) -> Array:
    """Sums over sequences divided by a constant, so that length has no influence (Dr. GRPO, section 3.2)."""
    sequences = max(int(np.count_nonzero(lengths)), 1)
    return np.full(len(lengths), 1.0 / (sequences * tokens))
