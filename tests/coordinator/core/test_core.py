from __future__ import annotations

from dataclasses import replace
from unittest.mock import ANY

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from coordinator.core.core import CoordinatorCore, Restored
from coordinator.core.events.actions import (
    Assignment,
    CloseAttempt,
    CloseGroup,
    EndSession,
    LiftQuarantine,
    Neighbour,
    Note,
    Penalise,
    RecordAttempt,
    RecordQuarantine,
    RevokeLeases,
    SendAnnouncement,
    SendLeases,
    SendPlan,
    SendToPeer,
    StopPeer,
    StoreRollout,
    SupplyPrompts,
)
from coordinator.core.events.events import (
    BatchRecorded,
    BatchRequested,
    HeartbeatReceived,
    LearnerStatusChanged,
    LinkFacts,
    PeerAccused,
    PeerLeft,
    RunEnded,
    Tick,
    VersionHeld,
)
from coordinator.core.events.operator_events import PeerEnabled
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, PlanId, Step, Version
from tests.coordinator.core_world import (
    World,
    announced,
    heartbeat,
    held,
    joined,
    only,
    received,
    rollout,
    settings,
    wants,
)

A, B, ORIGIN = PeerId("a"), PeerId("b"), PeerId("origin")


def at(name: str, role: str = "peer") -> Neighbour:
    return Neighbour(PeerId(name), role, f"{name}:1", True)


def dials_us(name: str) -> Neighbour:
    return Neighbour(PeerId(name), "peer", "", False)


def test_a_joining_peer_gets_its_part_of_the_plan_and_the_newest_announcement() -> None:
    core = CoordinatorCore(settings())
    assert core.handle(joined("origin", role="origin"), 0.0) == [
        Note("peer_joined", "origin", "origin as origin"),
        SendPlan(ORIGIN, PlanId(1), Assignment()),
    ]
    core.handle(announced(0), 0.0)
    assert core.handle(joined("a"), 1.0) == [
        Note("peer_joined", "a", "a as peer"),
        SendPlan(ORIGIN, PlanId(2), Assignment((dials_us("a"),), list_children=(0,), direct_copies=True)),
        SendPlan(A, PlanId(2), Assignment((at("origin", "origin"),), parents=(0,))),
        SendAnnouncement((A,), Version(0)),
        SupplyPrompts(4),
    ]
    actions = core.handle(joined("b"), 2.0)
    assert actions == [
        Note("peer_joined", "b", "b as peer"),
        SendPlan(ORIGIN, PlanId(3), ANY),
        SendPlan(A, PlanId(3), ANY),
        SendPlan(B, PlanId(3), ANY),
        SendAnnouncement((B,), Version(0)),
    ]
    (of_b,) = [plan.part for plan in only(actions, SendPlan) if plan.peer_id == B]
    assert of_b.neighbours == (at("a"), at("origin", "origin"))
    assert [(stripe.stripe, stripe.children) for stripe in of_b.stripes] == [(2, (0,))]


def test_peers_that_joined_before_the_origin_are_planned_when_it_joins() -> None:
    core = CoordinatorCore(settings())
    assert only(core.handle(joined("a"), 0.0), SendPlan) == []
    assert [one.peer_id for one in only(core.handle(joined("origin", role="origin"), 0.0), SendPlan)] == ["a", "origin"]
    assert core.origin is not None
    assert core.origin.address == "origin:1"


def test_a_herd_of_joins_is_planned_at_the_next_tick() -> None:
    world = World()
    world.start()
    planned = [only(world.handle(joined(f"p{number}")), SendPlan) for number in range(80)]
    assert [bool(parts) for parts in planned] == [True] * 63 + [False] * 17
    world.now += 0.2
    told = {part.peer_id for part in only(world.handle(Tick()), SendPlan)}
    assert {f"p{number}" for number in range(63, 80)} <= told
    assert world.handle(Tick()) == []


def test_a_second_session_replaces_the_first() -> None:
    world = World()
    world.start("a")
    world.handle(wants("a", 2))
    (lease, _), _ = world.take("a")
    assert world.handle(joined("a")) == [
        Note("session_replaced", "a", "the same identity opened a second session"),
        Note("peer_joined", "a", "a as peer"),
        SendPlan(A, PlanId(3), ANY),
        SendAnnouncement((A,), Version(0)),
    ]
    (stored,) = only(world.handle(received("a", 1, rollout(lease, 0))), StoreRollout)
    assert stored.rollout.lease_id == lease.lease_id, "its attempts are still its own"


def test_the_slots_of_a_peer_that_sent_goodbye_go_to_another_with_the_same_seeds() -> None:
    world = World()
    world.start("a", "b")
    world.handle(wants("b", 4))
    world.finish("b")
    world.handle(wants("a", 2))
    (lease, first), (_, second) = world.take("a")
    world.handle(wants("b", 4))  # gets two: pacing opens no third group
    world.take("b")
    actions = world.handle(PeerLeft(A, "connection reset", finished=True))
    assert actions == [
        CloseAttempt(lease.lease_id, 0, "peer_left"),
        CloseAttempt(lease.lease_id, 1, "peer_left"),
        Note("peer_left", "a", "connection reset"),
        SendPlan(ORIGIN, PlanId(4), ANY),
        SendPlan(B, PlanId(4), ANY),
        RecordAttempt(LeaseId(5), FencingToken(5), lease.group_id, 0, first.seed, B),
        RecordAttempt(LeaseId(5), FencingToken(5), lease.group_id, 1, second.seed, B),
        SendLeases(B, (replace(lease, lease_id=LeaseId(5), fencing_token=FencingToken(5)),)),
    ]
    assert world.handle(PeerLeft(A, "again")) == []


def test_messages_of_strangers_are_ignored() -> None:
    world = World()
    world.start()
    for event in (heartbeat("x"), wants("x", 3), held("x", 0), PeerAccused(PeerId("x"), A, Version(0), 0, "")):
        assert world.handle(event) == []


def test_a_coordinator_that_did_not_run_ends_no_session() -> None:
    world = World(heartbeat_timeout_s=5.0, tick_s=0.2)
    world.start("a")
    assert world.handle(Tick()) == []
    world.now += 60.0  # it was suspended, or the machine was busy: heartbeats wait to be read
    assert world.handle(Tick()) == []
    for _ in range(11):
        world.now += 0.4
        world.handle(heartbeat("origin", active=0))
        assert world.handle(Tick()) == []
    world.now += 0.4
    assert EndSession(A, "no heartbeat") in world.handle(Tick()), "it runs again, and still nothing comes"


def test_links_that_a_heartbeat_leaves_out_are_those_reported_before() -> None:
    world = World()
    world.start("a")
    link = LinkFacts(B, "direct", 0.04, 10, 20, 0.0, "bbr")
    linked = msgspec.structs.replace(heartbeat("a", active=0).facts, links=(link,))
    world.handle(HeartbeatReceived(A, linked))
    world.handle(HeartbeatReceived(A, heartbeat("a", active=0, tokens_generated=7).facts, links_left_out=True))
    facts = world.core.state.members.get(A).facts
    assert (facts.tokens_generated, facts.links) == (7, (link,))
    world.handle(heartbeat("a", active=0))
    assert world.core.state.members.get(A).facts.links == ()


def test_a_member_whose_loop_is_late_is_waited_for() -> None:
    world = World(heartbeat_timeout_s=5.0)
    world.start("a", "b")
    lagging = msgspec.structs.replace(heartbeat("a", active=0).facts, loop_lag_s=2.0)
    world.handle(HeartbeatReceived(A, lagging))
    for name in ("b", "origin"):
        world.handle(heartbeat(name, active=0))
    world.now += 12.9  # 5 s and four times its lag
    assert EndSession(B, "no heartbeat") in (ended := world.handle(Tick()))
    assert EndSession(A, "no heartbeat") not in ended
    world.now += 0.2
    assert EndSession(A, "no heartbeat") in world.handle(Tick())


def test_silence_and_expiry_are_found_at_a_tick() -> None:
    world = World(heartbeat_timeout_s=5.0, lease_deadline_s=6.0)
    world.start("a", "b")
    world.handle(wants("a", 2))
    world.handle(wants("b", 2))
    (by_a, _), _ = world.take("a")
    (by_b, _), _ = world.take("b")
    world.now = 5.5
    for name in ("origin", "b"):
        world.handle(heartbeat(name, active=0))
    assert world.handle(Tick()) == [
        Note("peer_left", "a", "silent for 5.5 s"),
        SendPlan(ORIGIN, PlanId(4), ANY),
        SendPlan(B, PlanId(4), ANY),
        EndSession(A, "no heartbeat"),
    ]
    world.now = 6.0
    assert world.handle(Tick()) == [
        CloseAttempt(by_a.lease_id, 0, "lease_expired"),
        CloseAttempt(by_a.lease_id, 1, "lease_expired"),
        CloseAttempt(by_b.lease_id, 0, "lease_expired"),
        CloseAttempt(by_b.lease_id, 1, "lease_expired"),
        RevokeLeases(A, (by_a.lease_id,), "lease_expired"),
        RevokeLeases(B, (by_b.lease_id,), "lease_expired"),
    ]
    assert len(only(world.handle(wants("b", 4)), SendLeases)[0].leases) == 2


def test_an_announcement_goes_to_every_member_once() -> None:
    world = World()
    world.start("a")
    assert world.handle(announced(1)) == [SendAnnouncement((ORIGIN, A), Version(1))]
    assert world.handle(announced(1)) == [Note("announced_again", "version 1", "ignored: it is not a newer version")]
    assert world.core.newest_version == 1


def test_t_bcast_ends_with_the_last_peer_that_was_connected() -> None:
    world = World()
    world.start("a", "b")
    world.handle(announced(1))
    world.now = 0.5
    world.handle(held("a", 1))
    world.handle(joined("c"))
    world.now = 2.0
    world.handle(heartbeat("b", active=1))
    assert world.core.status(2.0).to_json()["t_bcast_s"] == {"p50": 0.0, "p95": 2.0, "last": 2.0}


def test_a_version_that_was_not_announced_cannot_be_held() -> None:
    world = World()
    world.start("a")
    assert world.handle(held("a", 7)) == [Penalise(A, "claims version 7, which was not announced", False)]
    assert world.handle(VersionHeld(A, Epoch(3), Version(0))) == [
        Penalise(A, "claims version 0, which was not announced", False)
    ]
    assert world.handle(held("origin", 7)) == []  # it holds a version before the announcement
    assert world.handle(heartbeat("a", active=7)) == []
    assert world.core.status(0.0).peers[1].active_version == 0


BY_RECEIPT = "sent a corrupt chunk: version 0, index 3, by its own receipt"


def accuse(culprit: str, chunk: int = 3, accuser: str = "b", receipt: bytes = b"") -> PeerAccused:
    return PeerAccused(PeerId(accuser), PeerId(culprit), Version(0), chunk, "hash differs", receipt)


def test_a_peer_that_its_own_receipt_convicts_is_quarantined() -> None:
    world = World()
    world.start("a", "b")
    world.handle(wants("a", 2))
    (lease, _), _ = world.take("a")
    assert world.handle(accuse("a", receipt=b"signed by a")) == [
        Note("accusation", "a", "b: hash differs"),
        Penalise(A, BY_RECEIPT, True),
        RecordQuarantine(A, BY_RECEIPT, b"signed by a"),
        SendToPeer(A, ANY),
        CloseAttempt(lease.lease_id, 0, "revoked"),
        CloseAttempt(lease.lease_id, 1, "revoked"),
        RevokeLeases(A, (lease.lease_id,), "revoked"),
        SendPlan(ORIGIN, PlanId(4), ANY),
        SendPlan(A, PlanId(4), ANY),
        SendPlan(B, PlanId(4), ANY),
    ]
    assert only(world.handle(wants("a", 2)), SendLeases) == []
    peer = world.core.status(0.0).peers[1]
    assert (peer.quarantined, peer.state, peer.reason) == (True, "quarantined", BY_RECEIPT)
    assert world.handle(accuse("a", receipt=b"signed by a")) == [Note("accusation", "a", "b: hash differs")]


def test_a_convicted_peer_is_quarantined_although_it_left_and_after_a_restart() -> None:
    world = World()
    world.start("a", "b")
    world.handle(PeerLeft(A, "gone"))
    (record,) = only(world.handle(accuse("a", receipt=b"signed by a")), RecordQuarantine)
    world.handle(joined("a"))
    assert world.core.status(0.0).peers[-1].quarantined
    after = CoordinatorCore(settings(), Restored(incarnation=2, quarantined={record.peer_id: record.reason}))
    assert after.peer_named(A) == A, "the operator may enable it while it is away"
    after.handle(joined("a"), 0.0)
    assert after.status(0.0).peers[0].reason == BY_RECEIPT
    assert only(after.handle(PeerEnabled(A), 1.0), LiftQuarantine) == [LiftQuarantine(A)]
    assert not after.status(1.0).peers[0].quarantined


def test_without_a_receipt_the_two_only_give_their_link_up() -> None:
    world = World(heartbeat_timeout_s=1e6)
    world.start("a", "b", "c", "d")
    before = world.core.status(0.0).peers
    noted, *plans = world.handle(accuse("a"))
    assert noted == Note("link_given_up", "a", "b: hash differs")
    assert plans
    for one, other in ((A, B), (B, A)):
        part = world.core.state.relay.assignment_of(one)
        assert part is not None
        assert other not in [neighbour.peer_id for neighbour in (*part.neighbours, *part.fallbacks)]
        assert len(part.parents) >= 2, "it receives from others"
    assert [(one.state, one.reason) for one in world.core.status(0.0).peers] == [
        (one.state, one.reason) for one in before
    ], "both keep their reputation"
    world.now = 599.0
    assert only(world.handle(Tick()), SendPlan) == []
    world.now = 601.0
    assert only(world.handle(Tick()), SendPlan), "they may try again"


def test_only_members_accuse_and_the_origin_stays() -> None:
    world = World()
    world.start("a", "b")
    assert world.handle(accuse("a", accuser="gone", receipt=b"signed by a")) == []
    assert world.handle(accuse("b", receipt=b"signed by b")) == []  # itself
    assert world.handle(accuse("origin", receipt=b"signed"))[1:] == [Penalise(ORIGIN, BY_RECEIPT, False)]
    for culprit in ("origin", "gone"):
        assert [one.kind for one in only(world.handle(accuse(culprit)), Note)] == ["accusation_ignored"]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (PeerAccused(B, A, Version(1), 0, ""), "version 1 was not announced recently"),
        (PeerAccused(B, A, Version(0), 16, ""), "version 0 has no chunk 16"),
        (
            PeerAccused(PeerId("remote"), PeerId("hidden"), Version(0), 0, ""),
            "the relay plan did not assign it that source",
        ),
    ],
)
def test_accusations_that_cannot_be_true_are_noted_only(event: PeerAccused, why: str) -> None:
    world = World()
    world.start("a", "b")
    for name in ("hidden", "remote"):  # neither can be dialled: there is no link between them
        world.handle(joined(name, address=""))
    assert world.handle(event) == [Note("accusation_ignored", event.culprit, f"{event.accuser}: {why}")]
    assert all(not peer.reason for peer in world.core.status(0.0).peers)


def test_a_peer_gives_up_at_most_half_of_the_others() -> None:
    """Else it alone would cost the origin a copy of each version in all stripes."""
    world = World()
    world.start("a", "b", "c", "d", "e")
    kinds = [only(world.handle(accuse(name)), Note)[0].kind for name in ("a", "c", "d", "e")]
    assert kinds == ["link_given_up"] * 2 + ["accusation_ignored"] * 2


@settings_of_hypothesis(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef"), st.integers(0, 15)), max_size=40))
def test_no_number_of_liars_costs_a_peer_its_reputation_or_its_sources(lies: list[tuple[str, str, int]]) -> None:
    world = World()
    world.start("a", "b", "c", "d", "e", "f")
    for number, (liar, victim, chunk) in enumerate(lies):
        world.now = float(number)
        assert only(world.handle(accuse(victim, chunk, liar)), Penalise) == []
    for peer in world.core.status(world.now).peers[1:]:
        assert not peer.quarantined
        part = world.core.state.relay.assignment_of(PeerId(peer.peer_id))
        assert part is not None
        assert part.parents


def test_accusations_of_a_quarantined_peer_are_ignored() -> None:
    world = World()
    world.start("a", "b")
    world.handle(accuse("b", accuser="a", receipt=b"signed by b"))
    assert world.handle(accuse("a"))[0].detail.startswith("b: ")  # type: ignore[union-attr]
    assert world.core.state.reach.given_up.of(A) == frozenset()


def test_a_slow_or_quarantined_peer_does_not_hold_t_bcast_back_once_it_is_out() -> None:
    world = World()
    world.start("a", "b")
    world.handle(announced(1))
    world.now = 1.0
    world.handle(held("b", 1))
    world.now = 9.0
    world.handle(accuse("a", receipt=b"signed by a"))
    assert world.core.status(9.0).t_bcast_s.last == 1.0


def test_the_end_revokes_drops_and_dismisses_all_members() -> None:
    world = World()
    world.start("a")
    world.handle(wants("a", 4))
    leases = world.take("a")
    world.handle(received("a", 1, rollout(leases[0][0], 0)))
    assert world.handle(RunEnded("finished", True)) == [
        CloseAttempt(LeaseId(1), 1, "run_ended"),
        CloseAttempt(LeaseId(2), 0, "run_ended"),
        CloseAttempt(LeaseId(2), 1, "run_ended"),
        RevokeLeases(A, (LeaseId(1), LeaseId(2)), "run_ended"),
        CloseAttempt(LeaseId(1), 0, "run_ended"),
        CloseGroup(GroupId(1)),
        CloseGroup(GroupId(2)),
        StopPeer(ORIGIN, "finished"),
        StopPeer(A, "finished"),
        Note("run_ended", "run", "finished"),
    ]
    assert world.handle(RunEnded("again", True)) == []
    assert world.handle(wants("a", 4)) == []
    assert world.handle(joined("b")) == [StopPeer(B, "finished")]
    assert world.handle(PeerLeft(A, "stopped")) == [Note("peer_left", "a", "stopped")]
    assert world.core.status(0.0).rollouts.open == 0


def test_members_of_an_interrupted_run_may_reconnect() -> None:
    world = World()
    world.start("a")
    assert world.handle(RunEnded("stopped", False)) == [
        EndSession(ORIGIN, "stopped"),
        EndSession(A, "stopped"),
        Note("run_ended", "run", "stopped"),
    ]
    assert world.handle(joined("b")) == [EndSession(B, "stopped")]


def test_an_interrupted_run_keeps_what_it_has() -> None:
    world = World()
    world.start("a")
    world.handle(wants("a", 4))
    leases = world.take("a")
    world.handle(received("a", 1, rollout(leases[0][0], 0)))
    assert only(world.handle(RunEnded("stopped", False)), CloseAttempt) == []
    assert world.core.status(0.0).rollouts.open == 4
    assert only(world.handle(received("a", 2, rollout(leases[0][0], 1))), StoreRollout) != []


def test_a_batch_that_is_being_recorded_at_the_end_counts_as_trained() -> None:
    world = World(groups_per_step=1)
    world.start("a")
    world.handle(wants("a", 2))
    world.finish("a")
    world.core.handle(BatchRequested(Step(0)), 0.0)
    world.core.handle(RunEnded("stopped", False), 0.0)
    world.core.handle(BatchRecorded(Step(0)), 0.0)
    counts = world.core.status(0.0).rollouts
    assert (counts.issued, counts.trained, counts.open, counts.dropped) == (2, 2, 0, {})


def test_a_restored_core_continues_where_the_ledger_ends() -> None:
    restored = Restored(
        versions={Version(5): 16},
        recorded_batches=6,
        last_group=40,
        incarnation=3,
        last_rollout=70,
        issued=100,
        accepted=70,
        trained=60,
        dropped={"run_ended": 40},
        trained_ages={0: 50, 1: 10},
        elapsed_s=1000.0,
    )
    world = World()
    world.core = CoordinatorCore(settings(), restored)
    assert (world.core.recorded_batches, world.core.newest_version) == (6, 5)
    world.handle(joined("origin", role="origin"))
    sent = [action for action in world.handle(joined("a")) if isinstance(action, SendAnnouncement)]
    latest = sorted(restored.versions)[-8:]
    assert sent == [SendAnnouncement((A,), version) for version in latest], "a chain of deltas can be followed"
    resumed = world.handle(replace(joined("b"), heard_version=latest[0]))
    sent = [action for action in resumed if isinstance(action, SendAnnouncement)]
    assert sent == [SendAnnouncement((B,), version) for version in latest[1:]], "the others were announced to it"
    world.handle(held("a", 5))
    world.handle(wants("a", 1))
    ((lease, _),) = world.take("a")
    assert (lease.group_id, lease.lease_id, lease.fencing_token, lease.oldest_useful_version) == (
        41,
        (3 << 32) + 1,
        (3 << 32) + 1,
        5,
    )
    status = world.core.status(5.0)
    assert status.rollouts.issued == 101
    assert (status.staleness_histogram, status.staleness_max_trained, status.elapsed_s) == ({"0": 50, "1": 10}, 1, 1005)
    world.core.validate()


def test_validate_finds_counts_that_do_not_add_up() -> None:
    world = World()
    world.start("a")
    world.core._state.accounts.issued += 1
    with pytest.raises(AssertionError, match="I11"):
        world.core.validate()


def test_reports_of_the_learner_are_taken_over() -> None:
    world = World()
    assert world.handle(LearnerStatusChanged("warm_start", "epoch 1 of 3", {"reward_before": 0.2})) == []
    status = world.core.status(0.0)
    assert (status.learner_phase, status.learner_detail, status.reward_before) == ("warm_start", "epoch 1 of 3", 0.2)


def test_a_heartbeat_without_news_reconsiders_no_peer_for_work() -> None:
    world = World()
    world.start("a")
    members = world.core._state.members
    world.handle(heartbeat("a", active=0))
    assert members.take_changed() == []
    world.handle(announced(1))
    world.handle(heartbeat("a", active=1))
    assert members.take_changed() == []  # it was looked at at once
    world.handle(heartbeat("a", active=1, state="draining"))
    assert not members.shares.places
