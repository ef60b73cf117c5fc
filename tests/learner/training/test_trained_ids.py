from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.training.trained_ids import TrainedIds


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 60)))
def test_it_is_a_set(ids: list[int]) -> None:
    trained, model = TrainedIds(), set[int]()
    for rollout_id in ids:
        assert trained.add(rollout_id) == (rollout_id not in model)
        model.add(rollout_id)
    assert len(trained) == len(model)
    assert all((rollout_id in trained) == (rollout_id in model) for rollout_id in range(-1, 62))
    again = TrainedIds((start, end) for start, end in trained.ranges())
    assert again.ranges() == trained.ranges()


def test_neighbours_merge_into_one_range() -> None:
    trained = TrainedIds()
    for rollout_id in (5, 7, 6, 1):
        trained.add(rollout_id)
    assert trained.ranges() == [[1, 1], [5, 7]]


@pytest.mark.parametrize("ranges", [[(3, 2)], [(1, 4), (4, 6)]])
def test_nonsense_ranges_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="overlap"):
        TrainedIds(ranges)
