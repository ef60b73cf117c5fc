"""A core that serves a cell, and a head whose member is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import (
    AnswerUpload,
    CloseAttempt,
    CloseGroup,
    DeliverRollout,
    Penalise,
    RecordGroup,
    RevokeLeases,
    ScoreRollout,
    SendAnnouncement,
    SendToPeer,
    StoreRollout,
    SupplyPrompts,
)
from coordinator.core.events.audit_events import RolloutAudit
from coordinator.core.events.cell_events import MembersConvicted, SlotsOver
from coordinator.core.events.events import (
    PeerJoined,
    RolloutScored,
    RolloutStored,
    RunEnded,
    SlotsLent,
    Started,
    StepFinished,
)
from coordinator.core.events.restored import Restored, RestoredAttempt, RestoredGroup, RestoredRollout
from coordinator.core.lent.lent import Lent, prompts_of
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, UploadId, Version
from rollcast.wire.rollouts import LeaseGrant, Slot
from tests.coordinator.core.lent.test_lent import LEASE as LEASE_OF_HEAD
from tests.coordinator.core_world import World, announced, heartbeat, held, joined, only, received, rollout, wants

LENT = replace(LEASE_OF_HEAD, oldest_useful_version=Version(0), oldest_own_version=Version(0))
KEYS = ((LeaseId(70), 0), (LeaseId(70), 3))


def cell_world(**changes: Any) -> World:
    return World(is_cell=True, samples_per_group=1, groups_per_step=4, pacing="none", **changes)


def lent(*leases: LeaseGrant) -> SlotsLent:
    return SlotsLent(tuple(one for lease in leases for one in prompts_of(lease)))


# ---------------------------------------------------------------- the cell


def test_members_get_the_heads_slots_with_its_seeds_and_lengths() -> None:
    world = cell_world()
    world.start("a")
    assert not only(world.handle(wants("a", 4)), SupplyPrompts)
    opened = only(world.handle(lent(LENT)), RecordGroup)
    assert [Lent.of(prompt) for prompt in prompts_of(LENT)] == [
        Lent(LeaseId(70), FencingToken(71), GroupId(9), index, seed, Version(0), 12)
        for index, seed in ((0, 5), (3, (1 << 64) - 1))
    ]
    assert [one.mixture_position for one in opened] == [one.mixture_position for one in prompts_of(LENT)]
    leased = world.take("a")
    assert [slot.seed for _, slot in leased] == [5, (1 << 64) - 1]
    assert {grant.sampling.max_new_tokens for grant, _ in leased} == {12}
    assert only(world.handle(lent(LENT)), RecordGroup) == []
    assert world.core.cell().slots_lent == 2


def test_a_member_is_given_only_slots_that_its_version_is_new_enough_for() -> None:
    world = cell_world()
    world.start("a")
    world.handle(wants("a", 4))
    world.handle(lent(replace(LENT, oldest_useful_version=Version(1))))
    assert world.take("a") == []
    world.handle(announced(1))
    world.now += 2.0
    world.handle(held("a", 1))
    assert {grant.oldest_useful_version for grant, _ in world.take("a")} == {1}


def test_a_stored_rollout_is_delivered_unscored_and_stays_until_the_head_has_it() -> None:
    world = cell_world()
    world.start("a")
    world.handle(wants("a", 4))
    world.handle(lent(LENT))
    (grant, slot), _ = world.take("a")
    item = rollout(grant, slot.sample_index)
    assert world.core.handle(received("a", 1, item), world.now) == [StoreRollout(RolloutId(1), PeerId("a"), item)]
    done = world.core.handle(RolloutStored(RolloutId(1)), world.now)
    assert only(done, ScoreRollout) == []
    assert only(done, AnswerUpload) == [AnswerUpload(UploadId(1), grant.lease_id, 0, True, "")]
    assert only(done, DeliverRollout) == [DeliverRollout(RolloutId(1))]
    assert [(slot.key, rollout_id) for slot, rollout_id in world.core.undelivered()] == [(KEYS[0], 1)]
    over = world.handle(SlotsOver({"": (KEYS[0],)}))
    assert over[:2] == [CloseAttempt(grant.lease_id, 0, "delivered"), CloseGroup(grant.group_id)]
    assert world.core.undelivered() == []
    status = world.core.status(world.now)
    assert (status.rollouts.dropped, status.peers[1].dropped) == ({"delivered": 1}, 0)
    assert status.waiting_for == ""


def test_what_the_head_revokes_is_revoked_at_members_and_taken_out_of_the_stock() -> None:
    world = cell_world()
    world.start("a")
    world.handle(wants("a", 1))
    world.handle(lent(LENT))
    ((grant, _),) = world.take("a")
    done = world.handle(SlotsOver({}, {"lease_expired": (LeaseId(70),)}))
    assert only(done, RevokeLeases) == [RevokeLeases(PeerId("a"), (grant.lease_id,), "lease_expired")]
    assert only(done, CloseAttempt) == [CloseAttempt(grant.lease_id, 0, "lease_expired")]
    assert world.core.cell().slots_lent == 0
    world.handle(wants("a", 2))
    assert world.take("a") == []


def test_a_restarted_cell_delivers_what_is_stored_and_knows_its_slots() -> None:
    stored, running = prompts_of(LENT)
    attempts = [RestoredAttempt(LeaseId(n), FencingToken(n), 0, PeerId("a")) for n in (1, 2)]
    made = RestoredRollout(RolloutId(8), attempts[0], Version(0), Version(0), False, b"")
    groups = (
        RestoredGroup(GroupId(1), stored, (), (made,)),
        RestoredGroup(GroupId(2), running, (attempts[1],), ()),
    )
    restored = Restored(incarnation=1, last_group=2, issued=2, accepted=1, groups=groups, versions={Version(0): 16})
    core = CoordinatorCore(replace(cell_world().core.settings), restored)
    assert core.handle(Started(), 0.0) == [DeliverRollout(RolloutId(8))]
    assert [(slot.key, rollout_id) for slot, rollout_id in core.undelivered()] == [(KEYS[0], 8)]
    assert core.cell().slots_lent == 2
    assert only(core.handle(lent(LENT), 0.0), RecordGroup) == []


def test_a_cell_whose_run_is_over_takes_nothing_from_the_head() -> None:
    world = cell_world()
    world.start("a")
    world.handle(wants("a", 4))
    world.handle(lent(LENT))
    world.handle(RunEnded("the head has ended the run", True))
    assert world.handle(SlotsOver({"": KEYS})) == []
    assert world.handle(lent(replace(LENT, lease_id=LeaseId(80)))) == []
    assert world.core.status(world.now).rollouts.open == 0


def test_a_cell_reports_its_fleet_and_the_version_of_most_slots() -> None:
    world = cell_world()
    world.start("a")
    world.handle(joined("b", concurrent=6))
    assert (world.core.cell().workers, world.core.cell().version) == (1, 0)
    world.handle(announced(1))
    world.handle(held("a", 1))
    world.handle(held("b", 0))
    facts = world.core.cell()
    assert (facts.workers, facts.slots, facts.slots_wanted, facts.version) == (2, 8, 16, 0)
    world.handle(held("b", 1))
    assert world.core.cell().version == 1


def test_a_member_that_the_head_convicts_is_quarantined_and_its_rollouts_are_made_anew() -> None:
    world = cell_world()
    world.start("a", "b")
    world.handle(wants("a", 1))
    world.handle(lent(LENT))
    ((grant, slot),) = world.take("a")
    world.handle(received("a", 1, rollout(grant, slot.sample_index)))
    done = world.handle(MembersConvicted({PeerId("a"): "sent wrong tokens"}))
    assert only(done, Penalise) == [Penalise(PeerId("a"), "sent wrong tokens", True)]
    assert world.core.undelivered() == []
    assert world.handle(MembersConvicted({PeerId("a"): "sent wrong tokens"})) == []
    world.handle(wants("b", 2))
    assert {one.seed for _, one in world.take("b")} == {5, (1 << 64) - 1}


def test_versions_of_a_cell_are_forgotten_by_their_own_numbers() -> None:
    world = cell_world()
    world.start("a")
    for version in range(1, 40):
        assert only(world.handle(announced(version)), SendAnnouncement)
    assert len(world.core.state.announced) < 12


# ---------------------------------------------------------------- the head


def joined_cell(name: str, slots: int = 0) -> PeerJoined:
    return replace(joined(name, concurrent=slots), is_cell=True)


def head_world() -> tuple[World, list[tuple[LeaseGrant, Slot]]]:
    """Return a head with a cell and an ordinary peer, and the slots that the cell holds."""
    world = World()
    world.start("p")
    world.handle(joined_cell("cell"))
    world.handle(heartbeat("cell", cell_workers=3, cell_slots=4))
    world.handle(held("cell", 0))
    world.handle(wants("cell", 4))
    return world, world.take("cell")


def test_a_cell_is_leased_as_many_slots_as_its_fleet_can_use_and_delivers_for_its_members() -> None:
    world, leased = head_world()
    assert len(leased) == 4
    for upload, (grant, slot) in enumerate(leased):
        done = world.handle(received("cell", upload, rollout(grant, slot.sample_index, peer=f"m{upload}")))
        assert only(done, AnswerUpload)[0].accepted
    row = next(one for one in world.core.status(0.0).peers if one.name == "cell")
    assert (row.cell_workers, row.concurrent_rollouts, row.accepted) == (3, 4, 4)


def test_how_many_workers_a_cell_has_is_not_known_while_its_coordinator_is_away() -> None:
    world, _ = head_world()
    world.handle(heartbeat("cell", cell_workers=None, cell_slots=4))
    row = next(one for one in world.core.status(0.0).peers if one.name == "cell")
    assert (row.cell_workers, row.concurrent_rollouts) == (None, 4), "it holds what it was leased"


def test_a_cell_may_not_speak_for_a_member_of_the_head_nor_a_peer_for_anyone() -> None:
    world, ((grant, slot), *_) = head_world()
    done = world.handle(received("cell", 1, rollout(grant, slot.sample_index, peer="p")))
    assert only(done, Penalise) == [Penalise(PeerId("cell"), "uploaded a segment generated by another peer", False)]
    world.handle(wants("p", 1))
    ((grant, slot),) = world.take("p")
    done = world.handle(received("p", 2, rollout(grant, slot.sample_index, peer="m1")))
    assert only(done, Penalise) == [Penalise(PeerId("p"), "uploaded a segment generated by another peer", False)]


def test_members_of_a_cell_may_generate_with_different_versions() -> None:
    world, ((first, slot), *_) = head_world()
    world.handle(announced(1))
    newer = rollout(first, slot.sample_index, peer="m1", version=1)
    assert only(world.handle(received("cell", 1, newer)), AnswerUpload)[0].accepted
    world.handle(wants("cell", 4))
    for grant, one in world.take("cell"):
        assert grant.oldest_own_version == 0
        older = rollout(grant, one.sample_index, peer="m2")
        assert only(world.handle(received("cell", 2, older)), AnswerUpload)[0].accepted


def test_a_convicted_member_is_reported_to_its_cell_and_its_rollouts_are_refused() -> None:
    world, ((first, slot), (second, other), *_) = head_world()
    world.handle(received("cell", 1, rollout(first, slot.sample_index, peer="bad")))
    audit = RolloutAudit(RolloutId(1), PeerId("bad"), 4, 4, 4, 30.0, 0.1, 0, "jax-cpu", True)
    done = world.handle(StepFinished(Step(1), {}, (audit,)))
    assert "bad" in [one.peer_id for one in only(done, Penalise)]
    (told,) = [one for one in only(done, SendToPeer) if one.peer_id == "cell"]
    assert told.message.audit_verdict.peer_id == "bad"
    assert told.message.audit_verdict.state == "quarantined"
    assert [one.reason for one in only(done, CloseAttempt)] == ["audit_failed"]
    done = world.handle(received("cell", 2, rollout(second, other.sample_index, peer="bad")))
    assert only(done, SendToPeer)[0].message.audit_verdict.peer_id == "bad"
    assert only(done, AnswerUpload) == [
        AnswerUpload(UploadId(2), second.lease_id, other.sample_index, False, "audit_failed")
    ]
    assert not world.core.state.members.kept_out_because(PeerId("cell"))


def test_scoring_stays_with_the_head() -> None:
    world, ((grant, slot), *_) = head_world()
    item = rollout(grant, slot.sample_index, peer="m1")
    world.core.handle(received("cell", 1, item), 0.0)
    assert only(world.core.handle(RolloutStored(RolloutId(1)), 0.0), ScoreRollout)
    assert world.core.handle(RolloutScored(RolloutId(1), 1.0), 0.0) is not None
