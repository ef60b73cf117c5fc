from __future__ import annotations

import itertools

from rollcast.wire.evaluation import evaluation_seed


def test_evaluation_seeds_differ_and_have_64_bits() -> None:
    seeds = {evaluation_seed(*indices) for indices in itertools.product(range(5), repeat=3)}
    assert len(seeds) == 5**3
    assert all(0 <= seed < 1 << 64 for seed in seeds)
