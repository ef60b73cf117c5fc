from __future__ import annotations

from coordinator.core.core import CoordinatorCore, Restored
from coordinator.core.events.actions import (
    AnswerEpoch,
    AnswerUpload,
    CloseAttempt,
    Note,
    Penalise,
    RecordBatch,
    RecordEpoch,
    RevokeLeases,
    ScoreRollout,
    SendAnnouncement,
    SendLeases,
    ServeBatch,
    StoreRollout,
)
from coordinator.core.events.events import (
    BatchRequested,
    EpochRecorded,
    EpochRequested,
    RolloutStored,
    Started,
    VersionAnnounced,
    VersionHeld,
)
from coordinator.core.events.restored import RestoredAttempt, RestoredGroup, RestoredRollout
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import (
    World,
    announced,
    heartbeat,
    held,
    joined,
    only,
    prompt,
    received,
    rollout,
    wants,
)
from tests.coordinator.core_world import settings as core_settings

A, B, ORIGIN = PeerId("a"), PeerId("b"), PeerId("origin")


def asked(request: int, step: int, common: int | None) -> EpochRequested:
    return EpochRequested(request, Step(step), None if common is None else Version(common))


def published(*versions: int) -> World:
    """Return a world in which peer a holds the newest of these versions; with S = 8 all are young enough."""
    world = World(staleness_limit=8, groups_per_step=2)
    world.handle(joined("origin", role="origin"))
    world.handle(joined("a"))
    for version in versions:
        world.handle(announced(version))
    world.handle(held("a", versions[-1]))
    return world


def segment(epoch: int, version: int, peer: str = "a", token: int = 1) -> Segment:
    return Segment("assistant", Epoch(epoch), Version(version), PeerId(peer), pack_ids((token,)), b"\x01")


def test_versions_continue_above_the_highest_published_and_the_answer_is_durable() -> None:
    world = published(0, 1, 2, 3)
    actions = world.handle(asked(5, 0, 1))
    assert actions[:2] == [
        RecordEpoch(Epoch(1), Step(0), Step(4), Version(1)),
        Note(
            "epoch_opened", "epoch 1", "versions up to 1 of earlier epochs stay valid; the learner continues at step 5"
        ),
    ]
    assert only(actions, AnswerEpoch) == []
    assert (world.core.epoch, world.core.newest_version, world.core.recorded_batches) == (1, 1, 4)
    assert world.handle(EpochRecorded(Epoch(1))) == [AnswerEpoch(5, Epoch(1), Step(4))]
    assert world.handle(BatchRequested(Step(2))) == [ServeBatch(Step(2), replayed=True)]


def test_a_repeated_request_has_the_same_answer_before_and_after_it_is_durable() -> None:
    world = published(0, 1)
    world.handle(asked(1, 0, 0))
    assert world.handle(asked(2, 0, 0)) == []
    assert world.handle(EpochRecorded(Epoch(1))) == [
        AnswerEpoch(1, Epoch(1), Step(2)),
        AnswerEpoch(2, Epoch(1), Step(2)),
    ]
    assert world.handle(asked(3, 0, 0)) == [AnswerEpoch(3, Epoch(1), Step(2))]


def test_requests_from_any_of_the_empty_steps_are_the_same() -> None:
    world = published(0, 1)
    world.handle(asked(1, 0, 0))
    world.handle(EpochRecorded(Epoch(1)))
    world.handle(asked(2, 0, None))
    answer = [AnswerEpoch(3, Epoch(2), Step(2))]
    assert world.handle(EpochRecorded(Epoch(2))) == [AnswerEpoch(2, Epoch(2), Step(2))]
    for step in (0, 1, 2):
        assert world.handle(asked(3, step, None)) == answer


def test_two_requests_at_once_are_both_answered() -> None:
    world = published(0, 1)
    world.handle(asked(1, 0, 1))
    world.handle(asked(2, 0, 0))
    assert world.handle(EpochRecorded(Epoch(1))) == [AnswerEpoch(1, Epoch(1), Step(2))]
    assert world.handle(EpochRecorded(Epoch(2))) == [AnswerEpoch(2, Epoch(2), Step(2))]


def test_another_request_opens_another_epoch_after_the_empty_batches() -> None:
    world = published(0, 1)
    world.handle(asked(1, 0, 1))
    world.handle(EpochRecorded(Epoch(1)))
    assert only(world.handle(asked(2, 0, 0)), RecordEpoch) == [RecordEpoch(Epoch(2), Step(2), Step(2), Version(0))]
    assert world.core.newest_version == 0
    world.core.validate()


def test_recorded_batches_come_first() -> None:
    world = published(0)
    world.handle(wants("a", 4))
    world.finish("a")
    world.handle(BatchRequested(Step(0)))
    assert world.handle(asked(1, 0, None)) == [
        Note("epoch_too_early", "step 1", "the learner must first train on the batches before step 2"),
        AnswerEpoch(1, Epoch(0), Step(1)),
    ]
    assert only(world.handle(asked(2, 1, None)), RecordEpoch) == [RecordEpoch(Epoch(1), Step(1), Step(1), None)]


def test_no_epoch_is_opened_while_a_batch_is_being_recorded() -> None:
    """This holds even for a learner that reports the next step already: it has not received that batch."""
    world = World(groups_per_step=1)
    world.start("a")
    world.handle(wants("a", 2))
    world.finish("a")
    assert only(world.core.handle(BatchRequested(Step(0)), 0.0), RecordBatch)
    early = world.core.handle(asked(1, 1, None), 0.0)
    assert only(early, AnswerEpoch) == [AnswerEpoch(1, Epoch(0), Step(1))]
    assert not only(early, RecordEpoch)


def test_a_learner_that_has_published_nothing_continues_at_its_step() -> None:
    world = World()
    world.handle(joined("a"))
    assert only(world.handle(asked(1, 0, None)), RecordEpoch) == [RecordEpoch(Epoch(1), Step(0), Step(0), None)]
    assert world.handle(EpochRecorded(Epoch(1))) == [AnswerEpoch(1, Epoch(1), Step(0))]
    assert world.handle(VersionAnnounced(Epoch(1), Version(0), 16)) == [SendAnnouncement((A,), Version(0))]


def test_a_learner_ahead_of_a_restored_coordinator_continues_at_its_step() -> None:
    world = published(0, 1)
    assert only(world.handle(asked(1, 7, 1)), RecordEpoch) == [RecordEpoch(Epoch(1), Step(0), Step(7), Version(1))]


def test_leases_are_revoked_and_orphans_in_ready_unscored_and_stored_slots_are_dropped() -> None:
    world = published(0, 1, 2)
    world.handle(wants("a", 4))
    (one, _), (_, _), (two, _), (_, _) = world.take("a")
    world.handle(received("a", 1, rollout(one, 0, segments=(segment(0, 1),))))  # counts still
    both = (segment(0, 1, token=5), segment(0, 2))
    world.handle(received("a", 2, rollout(one, 1, segments=both)))  # its group is ready
    world.core.handle(received("a", 3, rollout(two, 0, version=2)), 0.0)  # not stored yet
    actions = world.handle(asked(9, 0, 1))
    assert actions[2:5] == [
        CloseAttempt(two.lease_id, 1, "rolled_back"),
        RevokeLeases(A, (two.lease_id,), "rolled_back"),
        CloseAttempt(one.lease_id, 1, "rolled_back"),
    ]
    assert only(actions, CloseAttempt)[2:] == [CloseAttempt(two.lease_id, 0, "rolled_back")]
    counts = world.core.status(0.0).rollouts
    assert (counts.open, counts.dropped) == (1, {"rolled_back": 3})
    assert only(world.core.handle(RolloutStored(RolloutId(3)), 0.0), AnswerUpload)[0].accepted, "it is stored"
    # The slots are given out again with the same seeds, to who holds a version of the epoch.
    assert only(actions, SendLeases) == []
    world.handle(wants("a", 3))
    assert world.take("a") == [], "it holds an orphan"
    world.handle(VersionAnnounced(Epoch(1), Version(3), 16))
    world.handle(VersionHeld(A, Epoch(1), Version(3)))
    given = world.take("a")
    assert [(grant.group_id, grant.epoch, slot.sample_index) for grant, slot in given] == [
        (one.group_id, 1, 1),
        (two.group_id, 1, 0),
        (two.group_id, 1, 1),
    ]
    for upload, (grant, slot) in enumerate(given, start=20):
        world.handle(received("a", upload, rollout(grant, slot.sample_index, segments=(segment(1, 3),))))
    (formed,) = only(world.handle(BatchRequested(Step(3))), RecordBatch)
    assert formed.rollout_ids[0] == 1, "what counts still is trained"


def test_versions_in_common_stay_useful() -> None:
    world = published(0, 1)
    world.handle(asked(1, 0, 1))
    world.handle(EpochRecorded(Epoch(1)))
    world.handle(wants("a", 1))
    ((grant, _),) = world.take("a")
    assert grant.epoch == 1
    actions = world.handle(received("a", 1, rollout(grant, 0, segments=(segment(0, 1),))))
    assert only(actions, StoreRollout) != []
    assert world.handle(VersionHeld(A, Epoch(0), Version(1))) == []


def test_a_peer_that_does_not_know_yet_is_not_blamed() -> None:
    world = published(0, 1)
    world.handle(joined("b"))
    world.handle(held("b", 0))
    world.handle(asked(1, 0, 0))
    world.handle(wants("b", 1))
    ((grant, _),) = world.take("b")
    assert world.handle(VersionHeld(B, Epoch(0), Version(1))) == []
    orphan = rollout(grant, 0, segments=(segment(0, 1, "b"),))
    actions = world.handle(received("b", 1, orphan))
    assert actions[:2] == [
        CloseAttempt(grant.lease_id, 0, "rolled_back"),
        AnswerUpload(only(actions, AnswerUpload)[0].upload_id, grant.lease_id, 0, False, "rolled_back"),
    ]
    assert only(actions, Penalise) == []
    world.handle(wants("b", 1))
    assert world.take("b") == [], "it generates with an orphan"
    world.handle(heartbeat("b", active=1))
    assert world.core.status(0.0).peers[2].active_version is None


def test_a_version_of_the_epoch_before_is_announced_in_vain() -> None:
    world = published(0, 1)
    world.handle(asked(1, 0, 1))
    assert world.handle(announced(2)) == [Note("announced_in_vain", "version 2", "epoch 0 is over")]
    assert world.handle(VersionAnnounced(Epoch(2), Version(2), 16))[0] == Note(
        "announced_in_vain", "version 2", "epoch 2 is over"
    )
    assert [one.version for one in only(world.handle(joined("b")), SendAnnouncement)] == [0, 1]


def test_a_crash_between_the_record_and_what_it_drops_is_repaired_at_the_start() -> None:
    def stored(number: int, index: int, version: int) -> RestoredRollout:
        came_from = RestoredAttempt(LeaseId(1), FencingToken(1), index, A)
        return RestoredRollout(RolloutId(number), came_from, Version(0), Version(version), False, pack_ids((5,)))

    restored = Restored(
        incarnation=1,
        epochs=(RecordEpoch(Epoch(1), Step(0), Step(3), Version(0)),),
        versions={Version(0): 16},
        recorded_batches=3,
        last_group=1,
        last_rollout=2,
        issued=2,
        accepted=2,
        groups=(RestoredGroup(GroupId(1), prompt(1), (), (stored(1, 0, 0), stored(2, 1, 2))),),
    )
    core = CoordinatorCore(core_settings(staleness_limit=8), restored)
    assert core.handle(Started(), 0.0) == [
        CloseAttempt(LeaseId(1), 1, "rolled_back"),
        ScoreRollout(RolloutId(1), "problem-1", pack_ids((5,))),
    ]
    assert core.handle(asked(1, 0, 0), 0.0) == [AnswerEpoch(1, Epoch(1), Step(3))]
    core.validate()
