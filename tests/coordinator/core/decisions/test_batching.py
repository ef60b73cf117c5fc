"""Batches: which groups are selected, and what is recorded before the learner is served."""

from __future__ import annotations

from coordinator.core.core import CoordinatorCore, Restored
from coordinator.core.events.actions import (
    CloseAttempt,
    CloseGroup,
    Note,
    RecordBatch,
    RevokeLeases,
    ScoreRollout,
    ServeBatch,
    StoreRollout,
    SupplyPrompts,
)
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
        """Give the next open group these rewards; return its lease and the actions of the last one."""
        world, core = self.world, self.world.core
        if "a" not in world.grants:
            world.handle(wants("a", 2))
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
            actions = list(world.handle(RolloutScored(rollout_id, reward)))
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
    assert only(scored.world.handle(BatchRequested(Step(0))), RecordBatch) == [
        RecordBatch(Step(0), (RolloutId(5), RolloutId(6)))
    ]
    counts = scored.world.core.status(0.0).rollouts
    assert (counts.issued, counts.trained, scored.dropped) == (6, 2, {"no_advantage": 4})


def test_it_is_off_by_default() -> None:
    scored = Scored(on=False)
    scored.group(1.0, 1.0)
    assert scored.dropped == {}
    assert only(scored.world.handle(BatchRequested(Step(0))), RecordBatch) != []


def test_a_batch_is_formed_after_a_bounded_number_of_drops() -> None:
    scored = Scored(drops_per_step_max=2)
    for _ in range(3):
        scored.group(1.0, 1.0)
    assert scored.dropped == {"no_advantage": 4}
    assert only(scored.world.handle(BatchRequested(Step(0))), RecordBatch) == [
        RecordBatch(Step(0), (RolloutId(5), RolloutId(6)))
    ]
    scored.group(1.0, 1.0)  # of the next batch, with a bound of its own
    assert scored.dropped == {"no_advantage": 6}


def test_more_groups_are_kept_in_flight_where_many_are_dropped() -> None:
    scored = Scored()
    before = scored.world.core._state.usefulness.groups_per_useful_one
    for _ in range(4):
        scored.group(1.0, 1.0)
    assert before == 1.0
    assert 1.1 < scored.world.core._state.usefulness.groups_per_useful_one < 1.4


def test_groups_that_were_ready_before_a_restart_are_reviewed_again() -> None:
    def stored(number: int, group: int, index: int, reward: float) -> RestoredRollout:
        attempt = RestoredAttempt(LeaseId(group), FencingToken(group), index, PEER)
        return RestoredRollout(RolloutId(number), attempt, Version(0), Version(0), True, b"", reward)

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


def test_a_curriculum_receives_the_steps_of_its_prompts() -> None:
    world = World(staged_prompts=True, groups_per_step=2, steps=50)
    assert SupplyPrompts(4, tuple(map(Step, (0, 0, 1, 1)))) in world.handle(joined("a"))
    world.handle(announced(0))
    world.handle(held("a", 0))
    asked = only(world.handle(wants("a", 4)), SupplyPrompts)
    assert asked == [SupplyPrompts(2, tuple(map(Step, (2, 2))))]


def trained_through(world: World, step: int, *peers: str) -> None:
    """Train batch ``step`` on rollouts of that version by these peers, then give all of them the next version."""
    for peer in peers:
        world.handle(wants(peer, 4))
        world.finish(peer, version=step)
    assert ServeBatch(Step(step), False) in world.handle(BatchRequested(Step(step)))
    world.handle(announced(step + 1))
    for peer in peers:
        world.handle(held(peer, step + 1))


def test_a_batch_is_recorded_before_it_is_served_and_served_again_when_asked() -> None:
    world = World()
    world.start("a")
    world.handle(wants("a", 4))
    world.finish("a")
    core = world.core
    assert core.handle(BatchRequested(Step(0)), 0.0) == [
        RecordBatch(Step(0), (RolloutId(1), RolloutId(2), RolloutId(3), RolloutId(4)))
    ]
    assert core.handle(BatchRequested(Step(0)), 0.0) == []
    assert core.handle(BatchRecorded(Step(0)), 0.0)[0] == ServeBatch(Step(0), replayed=False)
    assert core.handle(BatchRequested(Step(0)), 0.0) == [ServeBatch(Step(0), replayed=True)]
    assert core.recorded_batches == 1
    assert core.status(0.0).staleness_histogram == {"0": 4}


def test_a_waiting_learner_is_served_when_the_last_rollout_is_scored() -> None:
    world = World(groups_per_step=1)
    world.start("a")
    assert world.handle(BatchRequested(Step(0))) == []
    world.handle(wants("a", 2))
    leases = world.take("a")
    for upload, (lease, slot) in enumerate(leases):
        world.core.handle(received("a", upload, rollout(lease, slot.sample_index)), 0.0)
        assert only(world.core.handle(RolloutStored(RolloutId(upload + 1)), 0.0), ScoreRollout)
    assert world.core.handle(RolloutScored(RolloutId(2), 1.0), 0.0) == []
    assert RecordBatch(Step(0), (RolloutId(1), RolloutId(2))) in world.core.handle(
        RolloutScored(RolloutId(1), 0.0), 0.0
    )


def test_the_next_batch_may_be_requested_while_one_is_recorded() -> None:
    world = World(groups_per_step=1)
    world.start("a")
    world.handle(wants("a", 4))
    world.finish("a")
    assert only(world.core.handle(BatchRequested(Step(0)), 0.0), RecordBatch) != []
    assert only(world.core.handle(BatchRequested(Step(1)), 0.0), RecordBatch) == []
    assert world.core.handle(BatchRecorded(Step(0)), 0.0)[:2] == [
        ServeBatch(Step(0), replayed=False),
        RecordBatch(Step(1), (RolloutId(3), RolloutId(4))),
    ]


def test_a_step_out_of_order_is_noted_and_nothing_is_formed() -> None:
    world = World(steps=1)
    world.start("a")
    assert world.handle(BatchRequested(Step(1))) == [
        Note("batch_out_of_order", "step 2", "the next batch is for step 1 of 1")
    ]
    trained_through(world, 0, "a")
    assert world.handle(BatchRequested(Step(1))) == [
        Note("batch_out_of_order", "step 2", "the next batch is for step 2 of 1")
    ]


def test_a_group_with_a_rollout_too_old_for_the_next_batch_is_dropped_whole() -> None:
    world = World(groups_per_step=1, samples_per_group=3, staleness_limit=1)
    world.start("slow", "late", "a")
    world.handle(wants("slow", 2))
    world.handle(wants("late", 1))
    (first, _), *_ = world.take("slow")
    (second, _), *_ = world.take("late")
    assert (first.group_id, second.group_id) == (1, 1)
    world.handle(received("slow", 90, rollout(first, 0, version=0, peer="slow")))  # its sample 1 stays under way
    trained_through(world, 0, "a")
    world.handle(received("late", 91, rollout(second, 2, version=1, peer="late")))
    world.handle(wants("a", 3))
    world.finish("a", version=1)
    actions = world.handle(BatchRequested(Step(1)))
    assert only(actions, ServeBatch) == [ServeBatch(Step(1), False)]
    assert only(actions, CloseAttempt) == [
        CloseAttempt(first.lease_id, 1, "group_stale"),  # under way
        CloseAttempt(first.lease_id, 0, "stale"),  # version 0, for step 2
        CloseAttempt(second.lease_id, 2, "group_stale"),  # version 1, for step 2
    ]
    assert only(actions, RevokeLeases) == [RevokeLeases(PeerId("slow"), (first.lease_id,), "group_stale")]
    assert world.core.status(0.0).rollouts.dropped == {"group_stale": 2, "stale": 1}
