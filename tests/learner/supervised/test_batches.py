from __future__ import annotations

import numpy as np

from learner.supervised.batches import held_out, most_in_a_row, plan_epoch
from rollcast.policy.kernels.cudnn import ROW_SEQUENCES_MAX


def test_a_pass_has_every_example_once_in_rows_with_room_for_it() -> None:
    lengths = np.random.default_rng(3).integers(1, 40, 500).tolist()
    plan = plan_epoch(lengths, rows=4, row_tokens=64, seed=7, epoch=0)
    assert sorted(index for batch in plan for row in batch for index in row) == list(range(500))
    assert all(sum(lengths[index] for index in row) <= 64 for batch in plan for row in batch)
    assert all(len(batch) == 4 for batch in plan[:-1])
    filled = sum(lengths) / (64 * sum(map(len, plan)))
    assert filled > 0.8
    assert plan == plan_epoch(lengths, rows=4, row_tokens=64, seed=7, epoch=0)
    assert plan != plan_epoch(lengths, rows=4, row_tokens=64, seed=7, epoch=1)


def test_a_row_has_few_enough_examples() -> None:
    plan = plan_epoch([1] * (ROW_SEQUENCES_MAX + 1), rows=1, row_tokens=1000, seed=0, epoch=0)
    assert [len(row) for batch in plan for row in batch] == [ROW_SEQUENCES_MAX, 1]
    assert most_in_a_row([plan_epoch([1] * 5, rows=2, row_tokens=3, seed=0, epoch=0)]) == 4


def test_held_out_examples_are_a_share_of_bounded_size() -> None:
    assert held_out(100, 0.1, 50, 1).sum() == 10
    assert held_out(100, 0.1, 5, 1).sum() == 5
    assert held_out(10, 0.01, 5, 1).sum() == 1
    assert held_out(10, 0.0, 5, 1).sum() == held_out(1, 0.5, 5, 1).sum() == 0
