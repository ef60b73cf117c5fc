"""Choose which completions of a batch count, and how often: pairs of high contrast, resampled by their advantages.

Both follow Zhu et al. 2025, "Shuffle-R1" (arXiv 2508.05612), and were compared with the authors' code (xiaomi-research/
shuffle-r1): pairs with ``compute_pairwise_purning_grpo_advantage`` of shuffle_r1/custom_algos.py for the pruning ratio
1 - share, probabilities with its ``normalize_advantage`` for the method "power", p = 1 and sums of a pair's advantages,
and rounds with ``experience_resampling`` of shuffle_r1/ray_trainer.py, whose ``replay_times`` are the rounds. A group
keeps one pair at least, where theirs may keep none. NumPy float64, on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.objective.config import ObjectiveConfig

Array = np.ndarray[Any, Any]

_PROBABILITY_LEAST = 1e-9  # of a pair without advantage: it is taken only where no other one is left


def counts(config: ObjectiveConfig, advantages: Array, group_ids: Array, seed: Sequence[int]) -> Array:
    """Return how often each completion counts, f64 [sequences]; 1 for all where nothing is selected.

    Args:
        advantages: f64 [sequences].
        group_ids: i64 [sequences], the prompt group of each.
        seed: determines the resampling, so that a replayed batch is resampled as before.
    """
    if config.pair_share == 1.0 and not config.reshuffle_rounds:
        return np.ones(len(advantages))
    pairs = contrasting_pairs(advantages, group_ids, config.pair_share)
    times = np.ones(len(pairs))
    if config.reshuffle_rounds:
        times = reshuffled(advantages, pairs, config.reshuffle_rounds, np.random.default_rng(list(seed)))
    result = np.zeros(len(advantages))
    for side in range(2):
        result[pairs[:, side]] = times
    return result


def contrasting_pairs(advantages: Array, group_ids: Array, share: float) -> Array:
    """Return the pairs of greatest contrast of each group, i64 [pairs, 2], as indices of (better, worse) completions.

    The completions of a group are sorted by advantage; the best is paired with the worst, the second best with the
    second worst, and so on. The first ``share`` of these pairs is kept, at least one. The completion in the middle of a
    group of odd size has no pair.
    """
    kept: list[tuple[int, int]] = []
    for group in np.unique(group_ids):
        members = np.flatnonzero(group_ids == group)
        order = members[np.argsort(-advantages[members], kind="stable")]
        pairs = len(order) // 2
        most = max(1, int(pairs * share)) if pairs else 0
        kept += [(int(order[place]), int(order[-1 - place])) for place in range(most)]
    return np.array(kept, np.int64).reshape(-1, 2)


def reshuffled(advantages: Array, pairs: Array, rounds: int, random: np.random.Generator) -> Array:
    """Return how often each pair is taken, f64 [pairs], if the batch is composed anew from pairs of large advantages.

    Each of the rounds takes an equal part of the pairs' number, without replacement within the round, with
    probabilities W / sum W for W = |A better| + |A worse|; the rounds together are the new batch. So a pair counts up
    to ``rounds`` times, and the batch has as many pairs as before, up to rounding.
    """
    worth = np.abs(advantages[pairs]).sum(axis=1)
    times = np.zeros(len(pairs))
    if not worth.any():
        return times + 1.0
    chances = np.maximum(worth / worth.sum(), _PROBABILITY_LEAST)
    each = max(1, len(pairs) // rounds)
    for _ in range(rounds):
        times[random.choice(len(pairs), min(each, len(pairs)), replace=False, p=chances / chances.sum())] += 1.0
    return times
