from __future__ import annotations

import pytest

from coordinator.core.leases.batches import Batches, FormedBatch
from coordinator.core.leases.groups import Group
from coordinator.core.leases.lease_book import LeaseBook
from rollcast.wire.ids import PeerId, RolloutId, Step, Version
from tests.coordinator.core_world import prompt


def ready_groups(*oldest_versions: int) -> list[Group]:
    """One ready group of two rollouts for each version; the second rollout is of version 9."""
    leases = LeaseBook(run_seed=0, samples_per_group=2, finished_kept=10)
    for number, version in enumerate(oldest_versions):
        attempts = leases.issue(leases.open_group(prompt(number)), [0, 1], PeerId("a"), deadline=1.0)
        for attempt, made_by in zip(attempts, (version, 9), strict=True):
            rollout_id = RolloutId(10 * number + attempt.sample_index)
            leases.fill(attempt, rollout_id, Version(made_by), Version(made_by))
            leases.mark_stored(rollout_id)
            leases.mark_scored(rollout_id)
    return leases.ready_groups()


def batches(recorded: int = 9) -> Batches:
    return Batches(groups_per_step=2, recorded=recorded)


def form(part: Batches, ready: list[Group], age_max: int = 1) -> FormedBatch | None:
    groups = part.choose(ready, age_max)
    return part.form(groups, age_max) if groups else None


def test_the_oldest_groups_go_first() -> None:
    part = batches()
    part.wanted = Step(9)
    formed = form(part, ready_groups(8, 9, 9))
    assert formed is not None
    assert formed.rollout_ids == (0, 1, 10, 11)
    assert formed.ages == [1, 0, 0, 0]
    part.validate()


def test_groups_that_the_next_batch_could_not_take_go_before_older_ones() -> None:
    part = batches()
    part.wanted = Step(9)
    formed = form(part, ready_groups(9, 9, 8))
    assert formed is not None
    assert formed.rollout_ids == (0, 1, 20, 21)
    assert formed.age_max == 1


def test_skipping_leaves_empty_batches_behind() -> None:
    part = batches(recorded=3)
    part.wanted = Step(3)
    part.skip_to(Step(5))
    assert (part.recorded, part.next_step, part.wanted, part.is_recorded(Step(4))) == (5, 5, None, True)
    part.wanted = Step(5)
    part.skip_to(Step(5))
    assert part.wanted == 5
    with pytest.raises(ValueError, match="batch 5 is next"):
        part.skip_to(Step(4))


def test_the_gate_looks_at_every_age_again() -> None:
    part = batches()
    part.wanted = Step(9)
    formed = form(part, ready_groups(7, 8, 9))
    assert formed is not None
    assert formed.rollout_ids == (10, 11, 20, 21)
    part.validate()


def test_no_batch_without_enough_young_groups_or_a_request_or_while_one_is_recorded() -> None:
    part = batches()
    groups = ready_groups(9, 9, 9, 9, 7)
    assert form(part, groups) is None
    part.wanted = Step(9)
    assert form(part, [groups[0], groups[4]]) is None
    assert form(part, groups[:2]) is not None
    part.wanted = Step(10)
    assert part.next_step == 10
    assert form(part, groups[2:]) is None


def test_recording_moves_on() -> None:
    part = batches()
    part.wanted = Step(9)
    formed = form(part, ready_groups(9, 9))
    assert not part.is_recorded(Step(9))
    assert part.record() is formed
    assert part.is_recorded(Step(9))
    assert (part.recorded, part.next_step, part.recording) == (10, 10, None)
    with pytest.raises(ValueError, match="no batch is being recorded"):
        part.record()


def test_validate_names_a_rollout_that_is_too_old() -> None:
    part = batches(recorded=11)
    part.wanted = Step(11)
    part.form(tuple(ready_groups(9, 9)), 1)
    with pytest.raises(AssertionError, match="I3"):
        part.validate()
