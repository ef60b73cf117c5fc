from __future__ import annotations

from random import Random

from bench.prediction.promise import _random_question


def test_a_seed_gives_the_same_question_with_groups_and_lengths() -> None:
    wanted, workers = _random_question(Random("0 0"))
    assert (wanted, workers) == _random_question(Random("0 0"))
    assert wanted.conduct.samples_per_group in (4, 8, 16)
    assert wanted.rollouts_per_step >= 4 * wanted.conduct.samples_per_group
    assert wanted.length_quantiles
    assert 24 <= len(workers) < 60
