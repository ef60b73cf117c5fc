from __future__ import annotations

from coordinator.core.core import CoordinatorCore, Restored
from coordinator.core.events.actions import CloseAttempt, CloseGroup, RecordBatch, StoreRollout, SupplyPrompts
from coordinator.core.events.events import BatchRecorded, BatchRequested, RolloutScored, RolloutStored, Started
from coordinator.core.events.restored import RestoredAttempt, RestoredGroup, RestoredRollout
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import LeaseGrant
from tests.coordinator.core_world import (
    World,
    announced,
    held,
    joined,
    only,
    prompt,
    received,
    rollout,
    settings,
    wants,
)

PEER = PeerId("a")


class Scored:
    """A world with one group of two samples a step, whose rewards the test decides."""

    def __init__(self, *, drops_per_step_max: int = 100, groups_per_step: int = 1, on: bool = True) -> None:
        self.world = World(
            drop_without_advantage=on, drops_per_step_max=drops_per_step_max, groups_per_step=groups_per_step
        )
        self.world.start("a")
        self.last_rollout = 0

    def group(self, *rewards: float) -> tuple[LeaseGrant, list[object]]:
        """The next group that is open gets these rewards; the actions of the last one."""
        world, core = self.world, self.world.core
        if "a" not in world.grants:
            world.tell(wants("a", 2))
        grants = world.take("a")
        assert len(grants) == len(rewards)
        actions: list[object] = []
        ids = []
        for lease, slot in grants:
            world.uploads += 1
            stored = only(
                core.handle(received("a", world.uploads, rollout(lease, slot.sample_index)), 0.0), StoreRollout
            )
            ids.append(stored[0].rollout_id)
            core.handle(RolloutStored(ids[-1]), 0.0)
        for rollout_id, reward in zip(ids, rewards, strict=True):
            actions = list(world.tell(RolloutScored(rollout_id, reward, "")))
        return grants[0][0], actions

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.world.core.status(0.0).rollouts.dropped)


def test_a_group_whose_rewards_are_all_the_same_is_dropped_and_replaced() -> None:
    scored = Scored()
    lease, actions = scored.group(1.0, 1.0)
    assert actions[:3] == [
        CloseAttempt(lease.lease_id, 0, "no_advantage"),
        CloseAttempt(lease.lease_id, 1, "no_advantage"),
        CloseGroup(lease.group_id),
    ]
    scored.group(0.0, 0.0)
    scored.group(0.0, 1.0)
    assert only(scored.world.tell(BatchRequested(Step(0))), RecordBatch) == [
        RecordBatch(Step(0), (RolloutId(5), RolloutId(6)))
    ]
    counts = scored.world.core.status(0.0).rollouts
    assert (counts.issued, counts.trained, scored.dropped) == (6, 2, {"no_advantage": 4})


def test_it_is_off_by_default() -> None:
    scored = Scored(on=False)
    scored.group(1.0, 1.0)
    assert scored.dropped == {}
    assert only(scored.world.tell(BatchRequested(Step(0))), RecordBatch) != []


def test_a_batch_is_not_waited_for_for_ever() -> None:
    scored = Scored(drops_per_step_max=2)
    for _ in range(3):
        scored.group(1.0, 1.0)
    assert scored.dropped == {"no_advantage": 4}
    assert only(scored.world.tell(BatchRequested(Step(0))), RecordBatch) == [
        RecordBatch(Step(0), (RolloutId(5), RolloutId(6)))
    ]
    scored.group(1.0, 1.0)  # of the next batch, with a bound of its own
    assert scored.dropped == {"no_advantage": 6}


def test_more_groups_are_kept_under_way_where_many_are_dropped() -> None:
    scored = Scored()
    before = scored.world.core._state.usefulness.groups_per_useful_one
    for _ in range(4):
        scored.group(1.0, 1.0)
    assert before == 1.0
    assert 1.1 < scored.world.core._state.usefulness.groups_per_useful_one < 1.4


def test_what_was_ready_before_a_restart_is_looked_at_again() -> None:
    def stored(number: int, group: int, index: int, reward: float) -> RestoredRollout:
        attempt = RestoredAttempt(LeaseId(group), FencingToken(group), index, PEER)
        return RestoredRollout(RolloutId(number), attempt, Version(0), Version(0), True, (), reward)

    restored = Restored(
        incarnation=2,
        versions={Version(0): 16},
        last_group=2,
        last_rollout=4,
        issued=4,
        accepted=4,
        groups=(
            RestoredGroup(GroupId(1), prompt(1), (), (stored(1, 1, 0, 0.5), stored(2, 1, 1, 0.5))),
            RestoredGroup(GroupId(2), prompt(2), (), (stored(3, 2, 0, 0.0), stored(4, 2, 1, 0.5))),
        ),
    )
    core = CoordinatorCore(settings(drop_without_advantage=True, drops_per_step_max=9, groups_per_step=1), restored)
    assert core.handle(Started(), 0.0) == [
        CloseAttempt(LeaseId(1), 0, "no_advantage"),
        CloseAttempt(LeaseId(1), 1, "no_advantage"),
        CloseGroup(GroupId(1)),
    ]
    assert only(core.handle(BatchRequested(Step(0)), 0.0), RecordBatch) == [
        RecordBatch(Step(0), (RolloutId(3), RolloutId(4)))
    ]
    core.handle(BatchRecorded(Step(0)), 0.0)


def test_a_curriculum_is_told_the_steps_of_its_prompts() -> None:
    world = World(staged_prompts=True, groups_per_step=2, steps=50)
    assert SupplyPrompts(4, tuple(map(Step, (0, 0, 1, 1)))) in world.tell(joined("a"))
    world.tell(announced(0))
    world.tell(held("a", 0))
    asked = only(world.tell(wants("a", 4)), SupplyPrompts)
    assert asked == [SupplyPrompts(2, tuple(map(Step, (2, 2))))]
