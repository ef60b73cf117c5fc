"""The start, the interruption and the end of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.core import CoordinatorCore, Restored
from coordinator.core.decisions import lifecycle
from coordinator.core.events.actions import (
    AnswerUpload,
    CloseAttempt,
    RecordBatch,
    RevokeLeases,
    ScoreRollout,
    SendAnnouncement,
    StoreRollout,
)
from coordinator.core.events.events import BatchRequested, PeerLeft, RolloutScored, Started, Tick
from coordinator.core.events.restored import RestoredAttempt, RestoredFinished, RestoredGroup, RestoredRollout
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import Rollout
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
    settings,
    wants,
)

A, B = PeerId("a"), PeerId("b")


def attempt(lease: int, index: int, peer: PeerId = A) -> RestoredAttempt:
    return RestoredAttempt(LeaseId(lease), FencingToken(lease), index, peer)


def stored(number: int, of: RestoredAttempt, *, scored: bool) -> RestoredRollout:
    return RestoredRollout(RolloutId(number), of, Version(0), Version(0), scored, b"" if scored else pack_ids((5, 1)))


RESTORED = Restored(
    incarnation=2,
    versions={Version(0): 16},
    last_group=2,
    last_rollout=3,
    issued=5,
    accepted=3,
    dropped={"lease_expired": 1},
    groups=(
        RestoredGroup(
            GroupId(1), prompt(1), (), (stored(1, attempt(1, 0), scored=True), stored(2, attempt(1, 1), scored=False))
        ),
        RestoredGroup(GroupId(2), prompt(2), (attempt(2, 1),), (stored(3, attempt(2, 0), scored=True),)),
    ),
)


def restarted() -> World:
    world = World()
    world.core = CoordinatorCore(settings(lease_deadline_s=30.0), RESTORED)
    world.now = 100.0
    return world


def test_open_groups_continue_and_unscored_rollouts_are_scored() -> None:
    world = restarted()
    assert world.handle(Started()) == [ScoreRollout(RolloutId(2), "problem-1", pack_ids((5, 1)))]
    world.handle(RolloutScored(RolloutId(2), 1.0))
    for name in ("a", "b"):
        world.handle(joined(name))
        world.handle(held(name, 0))
    assert world.handle(BatchRequested(Step(0))) == []
    sent = rollout_of(LeaseId(2), GroupId(2), 1)
    actions = world.handle(received("a", 1, sent))
    assert [one.rollout.lease_id for one in only(actions, StoreRollout)] == [2]
    assert only(actions, RecordBatch) == [RecordBatch(Step(0), tuple(map(RolloutId, (1, 2, 3, 4))))]
    assert world.core.status(100.0).rollouts.trained == 4


def test_attempts_have_a_full_period_from_the_start() -> None:
    world = restarted()
    world.handle(Started())
    world.now = 129.9
    assert only(world.handle(Tick()), CloseAttempt) == []
    world.now = 130.0
    assert world.handle(Tick())[:2] == [
        CloseAttempt(LeaseId(2), 1, "lease_expired"),
        RevokeLeases(A, (LeaseId(2),), "lease_expired"),
    ]


def test_new_leases_are_of_this_incarnation_and_keep_their_slots_seed() -> None:
    fresh = World()
    fresh.start("a")
    fresh.handle(wants("a", 4))
    seeds = [slot.seed for grant, slot in fresh.take("a") if grant.group_id == 2]
    world = restarted()
    world.handle(Started())
    world.now = 130.0
    world.handle(Tick())
    world.handle(joined("b"))
    world.handle(held("b", 0))
    world.handle(wants("b", 1))
    ((grant, slot),) = world.take("b")
    assert (grant.lease_id, grant.fencing_token) == ((2 << 32) + 1, (2 << 32) + 1)
    assert (grant.group_id, slot.sample_index, slot.seed) == (2, 1, seeds[1])


def rollout_of(lease_id: LeaseId, group_id: GroupId, index: int) -> Rollout:
    world = World()
    world.start("a")
    world.handle(wants("a", 1))
    ((grant, _),) = world.take("a")
    made = rollout(grant, index)
    return replace(made, lease_id=lease_id, fencing_token=FencingToken(lease_id), group_id=group_id)


def test_uploads_answered_by_an_earlier_coordinator_get_the_same_answer() -> None:
    finished = (
        RestoredFinished(LeaseId(3), 0, PeerId("a"), GroupId(7), True),
        RestoredFinished(LeaseId(4), 0, PeerId("a"), GroupId(7), False),
    )
    world = World()
    world.core = CoordinatorCore(settings(), replace(RESTORED, finished=finished))
    world.handle(Started())
    for name in ("a", "b"):
        world.handle(joined(name))

    def answer(peer: str, lease: int) -> tuple[bool, str]:
        (said,) = only(world.handle(received(peer, 1, rollout_of(LeaseId(lease), GroupId(7), 0))), AnswerUpload)
        return said.accepted, said.reason

    assert answer("a", 3) == (True, "")
    assert answer("a", 4) == (False, "late_duplicate")
    assert answer("b", 3) == answer("a", 5) == (False, "fenced")


def test_a_version_is_announced_to_a_large_fleet_over_ticks_and_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that left meanwhile are passed over, and those that joined meanwhile hear of it once, when they join."""
    monkeypatch.setattr(lifecycle, "ANNOUNCED_AT_ONCE", 2)
    monkeypatch.setattr(lifecycle, "ANNOUNCED_WITH_A_HEARTBEAT", 1)
    core = CoordinatorCore(settings())
    core.handle(joined("origin", role="origin"), 0.0)
    for name in ("a", "b", "c", "d", "f"):
        core.handle(joined(name), 0.0)
    first = only(core.handle(announced(0), 0.0), SendAnnouncement)
    core.handle(PeerLeft(PeerId("b"), "gone"), 0.0)
    new = only(core.handle(joined("e"), 0.0), SendAnnouncement)
    beat = heartbeat("a")
    further = [only(core.handle(event, 0.2), SendAnnouncement) for event in (beat, Tick(), beat, Tick())]
    assert [one.peer_ids for one in first] == [("origin", "a")]
    assert [one.peer_ids for one in new] == [("e",)]
    assert [[one.peer_ids for one in sent] for sent in further] == [[], [("c", "d")], [("f",)], []]
