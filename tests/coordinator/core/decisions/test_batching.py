from __future__ import annotations

from coordinator.core.events.actions import CloseAttempt, Note, RecordBatch, RevokeLeases, ScoreRollout, ServeBatch
from coordinator.core.events.events import BatchRecorded, BatchRequested, RolloutScored, RolloutStored
from rollcast.wire.ids import PeerId, RolloutId, Step
from tests.coordinator.core_world import World, announced, held, only, received, rollout, wants


def trained_through(world: World, step: int, *peers: str) -> None:
    """Batch ``step`` from rollouts of that version, by these peers, then the next version for all of them."""
    for peer in peers:
        world.tell(wants(peer, 4))
        world.finish(peer, version=step)
    assert ServeBatch(Step(step), False) in world.tell(BatchRequested(Step(step)))
    world.tell(announced(step + 1))
    for peer in peers:
        world.tell(held(peer, step + 1))


def test_a_batch_is_recorded_before_it_is_served_and_served_again_when_asked() -> None:
    world = World()
    world.start("a")
    world.tell(wants("a", 4))
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
    assert world.tell(BatchRequested(Step(0))) == []
    world.tell(wants("a", 2))
    leases = world.take("a")
    for upload, (lease, slot) in enumerate(leases):
        world.core.handle(received("a", upload, rollout(lease, slot.sample_index)), 0.0)
        assert only(world.core.handle(RolloutStored(RolloutId(upload + 1)), 0.0), ScoreRollout)
    assert world.core.handle(RolloutScored(RolloutId(2), 1.0, ""), 0.0) == []
    assert RecordBatch(Step(0), (RolloutId(1), RolloutId(2))) in world.core.handle(
        RolloutScored(RolloutId(1), 0.0, ""), 0.0
    )


def test_the_next_batch_may_be_asked_for_while_one_is_recorded() -> None:
    world = World(groups_per_step=1)
    world.start("a")
    world.tell(wants("a", 4))
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
    assert world.tell(BatchRequested(Step(1))) == [
        Note("batch_out_of_order", "step 1", "the next batch is that of step 0 of 1")
    ]
    trained_through(world, 0, "a")
    assert world.tell(BatchRequested(Step(1))) == [
        Note("batch_out_of_order", "step 1", "the next batch is that of step 1 of 1")
    ]


def test_a_group_with_a_rollout_too_old_for_the_next_batch_is_dropped_whole() -> None:
    world = World(groups_per_step=1, samples_per_group=3, staleness_limit=1)
    world.start("slow", "late", "a")
    world.tell(wants("slow", 2))
    world.tell(wants("late", 1))
    (first, _), *_ = world.take("slow")
    (second, _), *_ = world.take("late")
    assert (first.group_id, second.group_id) == (1, 1)
    world.tell(received("slow", 90, rollout(first, 0, version=0, peer="slow")))  # its sample 1 stays under way
    trained_through(world, 0, "a")
    world.tell(received("late", 91, rollout(second, 2, version=1, peer="late")))
    world.tell(wants("a", 3))
    world.finish("a", version=1)
    actions = world.tell(BatchRequested(Step(1)))
    assert only(actions, ServeBatch) == [ServeBatch(Step(1), False)]
    assert only(actions, CloseAttempt) == [
        CloseAttempt(first.lease_id, 1, "group_stale"),  # under way
        CloseAttempt(first.lease_id, 0, "stale"),  # version 0, for step 2
        CloseAttempt(second.lease_id, 2, "group_stale"),  # version 1, for step 2
    ]
    assert only(actions, RevokeLeases) == [RevokeLeases(PeerId("slow"), (first.lease_id,), "group_stale")]
    assert world.core.status(0.0).rollouts.dropped == {"group_stale": 2, "stale": 1}
