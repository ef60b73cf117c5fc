from __future__ import annotations

from coordinator.core.staleness.age import StalenessFigures, age_at, oldest_useful_version, turn_of
from rollcast.wire.ids import Step, Version


def test_turn_counts_whole_batches_ahead() -> None:
    assert [turn_of(Step(7), ahead, 4) for ahead in (0, 3, 4, 11)] == [7, 7, 8, 9]


def test_age_and_the_oldest_version_that_keeps_the_limit_agree() -> None:
    for step in range(6):
        oldest = oldest_useful_version(Step(step), 2)
        assert oldest >= 0
        assert age_at(Step(step), oldest) <= 2
        assert oldest == 0 or age_at(Step(step), Version(oldest - 1)) > 2


def test_the_oldest_trained_rollout_is_remembered() -> None:
    figures = StalenessFigures()
    assert figures.max_trained is None
    for age in (0, 2, 1, 1):
        figures.trained(age, 2)
    assert (figures.max_trained, figures.gate_broken_by) == (2, 0)
    assert dict(figures.histogram) == {0: 1, 1: 2, 2: 1}
    figures.trained(3, 2)
    assert figures.gate_broken_by == 1
