"""Test pairs of high contrast and their resampling against Shuffle-R1's formulas, computed here by plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from learner.objective.advantages import group_normalised
from learner.objective.config import ObjectiveConfig
from learner.objective.selection import contrasting_pairs, counts, reshuffled

GROUPS = np.array([3, 8, 3, 3, 8, 3, 8, 3, 3, 8])
REWARDS = np.array([0.1, 1.0, 0.9, 0.4, 0.0, 0.6, 1.0, 0.5, 0.0, 0.0])
ADVANTAGES = group_normalised(REWARDS, GROUPS, 1e-4)


def pairs_by_the_paper(share: float) -> set[tuple[int, int]]:
    """Pair the i-th largest with the i-th smallest advantage of a group, and keep the first pairs."""
    found = set()
    for group in (3, 8):
        ranked = sorted(np.flatnonzero(group == GROUPS).tolist(), key=lambda index: -ADVANTAGES[index])
        both = [(ranked[place], ranked[len(ranked) - 1 - place]) for place in range(len(ranked) // 2)]
        found |= set(both[: max(1, int(share * len(both)))])
    return found


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 1.0])
def test_the_pairs_of_greatest_contrast_are_kept(share: float) -> None:
    found = contrasting_pairs(ADVANTAGES, GROUPS, share)
    assert set(map(tuple, found.tolist())) == pairs_by_the_paper(share)
    config = ObjectiveConfig(pair_share=share)
    times = counts(config, ADVANTAGES, GROUPS, [1])
    assert set(np.flatnonzero(times).tolist()) == ({*found.flatten()} if share < 1.0 else {*range(10)})


def test_kept_pairs_have_the_largest_contrast_of_their_group() -> None:
    kept = contrasting_pairs(ADVANTAGES, GROUPS, 0.5)
    contrast = ADVANTAGES[kept[:, 0]] - ADVANTAGES[kept[:, 1]]
    assert contrast[0] == np.ptp(ADVANTAGES[GROUPS == 3])


def test_pairs_are_taken_in_proportion_to_their_advantages() -> None:
    pairs = contrasting_pairs(ADVANTAGES, GROUPS, 1.0)
    worth = np.array([abs(ADVANTAGES[better]) + abs(ADVANTAGES[worse]) for better, worse in pairs])
    random = np.random.default_rng(7)
    # One pair a round: the chance of each in a round is W / sum W.
    mean = np.mean([reshuffled(ADVANTAGES, pairs, len(pairs), random) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean / len(pairs), worth / worth.sum(), atol=0.01)


def test_a_round_takes_no_pair_twice_and_a_replayed_batch_is_the_same() -> None:
    config = ObjectiveConfig(reshuffle_rounds=2)
    first, again = (counts(config, ADVANTAGES, GROUPS, [4, 5, 6]) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert first.max() <= 2.0
    assert first.sum() == 2 * 2 * (5 // 2)  # two rounds of half of the five pairs
    assert counts(ObjectiveConfig(), ADVANTAGES, GROUPS, [4]).tolist() == [1.0] * 10


def test_a_batch_without_advantages_stays_as_it_is() -> None:
    pairs = contrasting_pairs(np.zeros(4), np.array([1, 1, 1, 1]), 1.0)
    assert reshuffled(np.zeros(4), pairs, 3, np.random.default_rng(0)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("pairs", "rounds"), [(12, 3), (12, 1), (10, 4), (3, 5)])
def test_a_round_takes_as_many_pairs_as_in_the_authors_code(pairs: int, rounds: int) -> None:
    """shuffle_r1/ray_trainer.py, experience_resampling: size_scale = update_steps / (2 replay_times) of a batch."""
    trajectories, global_batch_size = 2 * pairs, 2 * pairs  # of the pairs that are kept, in one update
    update_steps = trajectories // global_batch_size
    each = min(int(global_batch_size * update_steps / (2 * rounds)), pairs)
    both = np.arange(trajectories).reshape(-1, 2)
    times = reshuffled(np.linspace(-1.0, 1.0, trajectories), both, rounds, np.random.default_rng(1))
    assert times.sum() == rounds * max(1, each)  # theirs takes no pair at all if there are more rounds than pairs
    assert times.max() <= rounds
