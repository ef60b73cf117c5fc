from __future__ import annotations

from coordinator.core.leases.batches import Usefulness


def test_how_many_groups_must_be_made_for_each_that_is_trained_on() -> None:
    usefulness = Usefulness()
    for number in range(400):
        usefulness.seen(useful=number % 2 == 0)
    assert 1.8 < usefulness.groups_per_useful_one < 2.2
    for _ in range(400):
        usefulness.seen(useful=False)
    assert usefulness.groups_per_useful_one == 5.0


def test_each_batch_has_its_own_bound() -> None:
    usefulness = Usefulness()
    usefulness.dropped = 3
    usefulness.batch_recorded()
    assert usefulness.dropped == 0
