"""Prompt groups from the queue to their batch."""

from __future__ import annotations

import pytest

from coordinator.core.events.actions import SupplyPrompts
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.batches import Batches, FormedBatch
from coordinator.core.leases.groups import Filling, Group, SlotState, slot_seed, validate_slot
from coordinator.core.leases.lease_book import LeaseBook
from coordinator.core.leases.prompt_queue import PromptQueue
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from tests.coordinator.core_world import prompt


def ready_groups(*oldest_versions: int) -> list[Group]:
    """Return a ready group of two rollouts for each version; the second rollout is of version 9."""
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


def test_the_gate_checks_every_age_again() -> None:
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


def attempt(number: int) -> Attempt:
    return Attempt(LeaseId(number), FencingToken(number), GroupId(1), 0, PeerId("a"), deadline=9.0)


def test_a_seed_depends_on_run_group_and_sample_and_has_64_bits() -> None:
    seeds = {slot_seed(run, GroupId(group), sample) for run in (1, 2**63 - 1) for group in (1, 2) for sample in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert slot_seed(1, GroupId(2), 3) == slot_seed(1, GroupId(2), 3) == 0x36F41223BB3FDC0C


def test_a_slot_is_open_without_an_attempt_or_with_only_a_lost_peers() -> None:
    slot, first, second = SlotState(seed=7), attempt(1), attempt(2)
    assert slot.open(set())
    slot.live.append(first)
    assert not slot.open(set())
    assert slot.open({first.key})
    slot.live.append(second)
    assert not slot.open({first.key, second.key}), "two live attempts at most"
    slot.live.clear()
    slot.filling = Filling(RolloutId(1), first, Version(0), Version(0), frozenset())
    assert not slot.open({first.key})


def test_a_third_live_attempt_is_found() -> None:
    slot = SlotState(seed=7, last_token=3, live=[attempt(1), attempt(2), attempt(3)])
    with pytest.raises(AssertionError, match="I6"):
        validate_slot(slot)


def test_one_request_at_a_time_up_to_the_target() -> None:
    queue = PromptQueue(groups_per_step=2, ahead_max=256)
    assert queue.ask(needed=100) == [SupplyPrompts(4)]
    assert queue.ask(needed=100) == []
    queue.supplied([prompt(number) for number in range(4)])
    assert queue.ask(needed=100) == []
    assert [queue.take(), queue.take()] == [prompt(0), prompt(1)]
    assert queue.ask(needed=100) == [SupplyPrompts(2)]


def test_no_more_prompts_than_can_be_used_or_the_bound() -> None:
    assert PromptQueue(groups_per_step=2, ahead_max=256).ask(needed=3) == [SupplyPrompts(3)]
    assert PromptQueue(groups_per_step=2, ahead_max=256).ask(needed=0) == []
    assert PromptQueue(groups_per_step=1000, ahead_max=256).ask(needed=9999) == [SupplyPrompts(256)]


def test_an_exhausted_source_is_not_asked_again() -> None:
    queue = PromptQueue(groups_per_step=2, ahead_max=256)
    queue.ask(needed=100)
    queue.supplied([prompt(0)])
    assert queue.exhausted
    assert queue.take() == prompt(0)
    assert queue.take() is None
    assert queue.ask(needed=100) == []
