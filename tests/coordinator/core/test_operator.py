"""Operators' orders in a run: peers that are drained, banned and enabled, kappa and the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import (
    Action,
    CloseAttempt,
    FailRun,
    Note,
    RecordBatch,
    RefuseSession,
    RevokeLeases,
    SendAnnouncement,
    SendLeases,
    SendPlan,
    SetBudget,
    TellActivation,
)
from coordinator.core.events.events import BatchRequested, Event, LearnerCalled, PeerAccused, PeerLeft, Tick
from coordinator.core.events.operator_events import (
    BudgetChanged,
    Order,
    PeerBanned,
    PeerDrained,
    PeerEnabled,
    PeerPinned,
    PublishPeriodChanged,
    RunFinishing,
    RunPaused,
    RunResumed,
    StalenessLimitChanged,
)
from coordinator.core.events.prices import ActivationSettings, Budget
from coordinator.core.events.restored import Restored
from coordinator.core.flight_format import (
    FORMAT,
    EventEntry,
    Head,
    checksum,
    entries_of,
    event_entry,
    frame,
    pack,
    whole,
)
from rollcast.wire.ids import PeerId, Step, Version
from tests.coordinator.core.test_core_properties import PEERS, RandomFleet
from tests.coordinator.core_world import World, announced, heartbeat, held, joined, only, settings, wants

A = PeerId("a")


def started(**changes: object) -> World:
    world = World(**changes)
    world.start("a", "b")
    world.handle(heartbeat("a", active=0))
    world.handle(heartbeat("b", active=0))
    return world


def state_of(world: World, name: str) -> tuple[str, str]:
    (found,) = [one for one in world.core.status(world.now).peers if one.name == name]
    return found.state, found.reason


# ---------------------------------------------------------------- drain


def test_a_drained_peer_finishes_its_leases_and_gets_no_more() -> None:
    world = started()
    world.handle(wants("a", 2))
    actions = world.handle(PeerDrained(A, "too hot"))
    assert only(actions, TellActivation) == [TellActivation(A, False, "drained by the operator: too hot")]
    assert only(actions, Note) == [Note("drained", A, "drained by the operator: too hot")]
    assert not only(actions, RevokeLeases)
    assert state_of(world, "a") == ("drained", "drained by the operator: too hot")
    accepted = world.core.status(world.now).rollouts.accepted
    world.finish("a")
    assert world.core.status(world.now).rollouts.accepted == accepted + 2
    assert not only(world.handle(wants("a", 4)), SendLeases)
    assert only(world.handle(wants("b", 4)), SendLeases)
    assert world.handle(PeerDrained(A, "too hot")) == []  # the same again


def test_a_drained_peer_does_not_relay_and_enabling_it_undoes_that() -> None:
    world = started()
    before = {one.peer_id for one in world.core.state.members if one.may_relay}
    drained = world.handle(PeerDrained(A))
    assert before - {one.peer_id for one in world.core.state.members if one.may_relay} == {A}
    assert only(drained, SendPlan)
    assert A not in world.core.state.relay.parents_of(PeerId("b"))
    assert world.core.state.relay.parents_of(A)  # it continues to receive
    enabled = world.handle(PeerEnabled(A, "cool again"))
    assert Note("enabled", A, "no longer drained: cool again") in enabled
    assert TellActivation(A, True, "on: enabled by the operator") in enabled
    assert A in world.core.state.relay.parents_of(PeerId("b"))
    assert only(world.handle(wants("a", 2)), SendLeases)


def test_t_bcast_does_not_include_drained_peers() -> None:
    world = started()
    world.handle(announced(1))
    world.now = 2.0
    world.handle(held("b", 1))
    assert world.core.status(world.now).t_bcast_s.last == 0.0  # of version 0
    world.handle(PeerDrained(A))
    assert world.core.status(world.now).t_bcast_s.last == 2.0
    world.handle(announced(2))
    assert world.core.state.dissemination.newest is not None
    assert world.core.state.dissemination.newest.missing == {PeerId("b")}


def test_a_drained_peer_that_reconnects_is_informed_again() -> None:
    world = started()
    world.handle(PeerDrained(A, "too hot"))
    world.handle(PeerLeft(A, "reboot"))
    assert TellActivation(A, False, "drained by the operator: too hot") in world.handle(joined("a"))
    world.handle(held("a", 0))
    assert not only(world.handle(wants("a", 2)), SendLeases)


def test_an_enabled_peer_on_standby_stays_there() -> None:
    world = started()
    world.handle(PeerPinned(A, "off"))
    world.handle(PeerDrained(A))
    actions = world.handle(PeerEnabled(A))
    assert only(actions, TellActivation) == [TellActivation(A, False, "off: pinned by the operator")]
    assert not only(world.handle(wants("a", 2)), SendLeases)


def test_a_peer_that_is_switched_on_while_it_is_drained_is_not_informed() -> None:
    world = started()
    world.handle(PeerPinned(A, "off"))
    world.handle(PeerDrained(A))
    assert not only(world.handle(PeerPinned(A, "on")), TellActivation)
    assert world.core.state.members.reputation(A).standby == ""


# ---------------------------------------------------------------- ban


def test_a_banned_peer_loses_its_leases_and_may_not_rejoin() -> None:
    world = started()
    world.handle(wants("a", 2))
    (lease,) = {grant.lease_id for grant, _ in world.take("a")}
    actions = world.handle(PeerBanned(A, "sends rubbish"))
    reason = "banned by the operator: sends rubbish"
    assert [one.reason for one in only(actions, CloseAttempt)] == ["revoked", "revoked"]
    assert only(actions, RevokeLeases) == [RevokeLeases(A, (lease,), "revoked")]
    (refused,) = only(actions, RefuseSession)
    assert (refused.peer_id, refused.code) == (A, "RC308")
    assert reason in refused.what
    assert Note("banned", A, reason) in actions
    assert world.core.state.members.get(A) is None
    assert world.core.banned_because(A) == reason
    assert only(world.handle(wants("b", 2)), SendLeases)  # what it held
    again = world.handle(joined("a"))
    assert [type(one) for one in again] == [RefuseSession]
    assert world.core.state.members.get(A) is None


def test_a_banned_peer_is_found_by_its_name_and_enabled() -> None:
    world = started()
    world.handle(PeerBanned(A, name="a"))
    for number in range(20):  # so many that it is not among those that left lately
        world.handle(joined(f"x{number}"))
        world.handle(PeerLeft(PeerId(f"x{number}"), "gone"))
    assert world.core.peer_named("a") == A
    assert Note("enabled", A, "no longer banned") in world.handle(PeerEnabled(A))
    assert only(world.handle(joined("a")), RefuseSession) == []
    world.handle(held("a", 0))
    assert only(world.handle(wants("a", 2)), SendLeases)


def test_rollouts_of_a_banned_peer_are_still_trained_on() -> None:
    world = started()
    for name in ("a", "b"):
        world.handle(wants(name, 2))
        world.finish(name)
    world.handle(PeerBanned(A))
    (batch,) = only(world.handle(BatchRequested(Step(0))), RecordBatch)
    assert len(batch.rollout_ids) == 4


def test_a_starting_coordinator_knows_the_bans_before_any_peer_joins() -> None:
    world = World()
    world.handle(PeerBanned(A, "sends rubbish", "Anna"))
    assert world.core.peer_named("Anna") == A
    assert only(world.handle(joined("a")), RefuseSession)


def test_enabling_lifts_a_quarantine_too() -> None:
    world = World()
    world.start("a", "b")
    world.now = 100.0
    world.handle(PeerAccused(PeerId("b"), A, Version(0), 3, "hash differs", b"signed by a"))
    assert state_of(world, "a")[0] == "quarantined"
    assert Note("enabled", A, "no longer quarantined") in world.handle(PeerEnabled(A))
    assert state_of(world, "a")[0] == "joined"
    assert only(world.handle(wants("a", 2)), SendLeases)
    assert world.handle(PeerEnabled(A)) == []


# ---------------------------------------------------------------- rules and money


def test_kappa_changes_within_s() -> None:
    world = World(staleness_limit=3)
    assert world.core.rules.publish_every_steps == 1
    actions = world.handle(PublishPeriodChanged(4))
    assert Note("publish_every_steps", "capacity", "kappa is 4 instead of 1") in actions
    assert (world.core.rules.publish_every_steps, world.core.rules.limit_least) == (4, 3)
    world.handle(PublishPeriodChanged(0))
    assert world.core.rules.follows_broadcasts
    with pytest.raises(ValueError, match="kappa must be 0 to 4"):
        world.handle(PublishPeriodChanged(5))


def test_the_budget_reaches_the_planner_and_the_providers() -> None:
    world = World(activation=ActivationSettings(budget=Budget(usd_per_hour_max=5.0)))
    actions = world.handle(BudgetChanged(Budget(usd_per_hour_max=2.0, usd_total_max=40.0)))
    assert actions == [
        Note("budget", "capacity", "2 $/h and 40 $ in total instead of 5 $/h and no total limit"),
        SetBudget(2.0, 40.0),
    ]
    assert world.core.budget == Budget(usd_per_hour_max=2.0, usd_total_max=40.0)
    (note, _) = world.handle(BudgetChanged(Budget()))
    assert isinstance(note, Note)
    assert note.detail.startswith("no hourly limit and no total limit instead of")


# ---------------------------------------------------------------- owners' limits


@pytest.mark.parametrize("stopped", ["sending_stopped", "receiving_stopped"])
def test_no_peer_receives_from_one_that_may_not_send(stopped: str) -> None:
    world = started()
    b = PeerId("b")
    assert A in world.core.state.relay.parents_of(b)
    assert only(world.handle(heartbeat("a", active=0, **{stopped: True})), SendPlan)
    assert A not in world.core.state.relay.parents_of(b)
    receives = stopped == "sending_stopped"
    assert bool(world.core.state.relay.parents_of(A)) is receives
    assert only(world.handle(heartbeat("a", active=0)), SendPlan)
    assert A in world.core.state.relay.parents_of(b)
    assert world.core.state.relay.parents_of(A)


def test_no_broadcast_waits_for_a_peer_that_may_not_receive() -> None:
    world = started()
    world.handle(announced(1))
    world.handle(held("b", 1))
    world.handle(heartbeat("a", active=0, receiving_stopped=True))
    assert world.core.status(world.now).t_bcast_s.last == 0.0


def test_a_peer_that_may_not_receive_gets_announcements_later() -> None:
    world = started()
    world.handle(heartbeat("a", active=0, receiving_stopped=True))
    assert all(A not in one.peer_ids for one in only(world.handle(announced(1)), SendAnnouncement))
    later = only(world.handle(heartbeat("a", active=0)), SendAnnouncement)
    assert [(one.peer_ids, one.version) for one in later][-1] == ((A,), 1)
    assert not only(world.handle(heartbeat("a", active=0)), SendAnnouncement)


# ---------------------------------------------------------------- whatever happens


class OperatedFleet(RandomFleet):
    """Peers of all kinds under an operator who drains, bans and enables; no excluded one may get work."""

    def __init__(self, seed: int) -> None:
        self.out: set[str] = set()
        self.banned: set[str] = set()
        self.orders: list[Order] = []
        self.kept: list[EventEntry] = []
        super().__init__(seed, staleness_limit=2)

    def handle(self, event: Event) -> None:
        if isinstance(event, PeerDrained | PeerBanned):
            self.out.add(event.peer_id)
        if isinstance(event, PeerBanned):
            self.banned.add(event.peer_id)
        if isinstance(event, PeerEnabled):
            self.out.discard(event.peer_id)
            self.banned.discard(event.peer_id)
        handle = self.core.handle

        def recorded(event: Event, now: float) -> list[Action]:
            actions = handle(event, now)
            self.kept.append(event_entry(now, event, actions))
            return actions

        self.core.handle = recorded  # type: ignore[method-assign]
        try:
            super().handle(event)
        finally:
            self.core.handle = handle  # type: ignore[method-assign]
        for name in self.banned:
            assert self.core.state.members.get(PeerId(name)) is None
            assert not self.core.state.book.held_by(PeerId(name))

    def _keep(self, action: Action) -> None:
        if isinstance(action, SendLeases):
            assert action.peer_id not in self.out, f"{action.peer_id} is kept out and is given work"
        super()._keep(action)

    def operator_acts(self) -> None:
        peer, rules = PeerId(self.random.choice(PEERS)), self.core.rules
        order = self.random.choice(
            (
                PeerDrained(peer, "a whim", peer),
                PeerBanned(peer, "", peer),
                PeerEnabled(peer),
                PeerEnabled(PeerId(self.random.choice(sorted(self.out) or PEERS))),
                PeerPinned(peer, self.random.choice(("on", "off", ""))),
                StalenessLimitChanged(self.random.randint(rules.limit_least, 6)),
                PublishPeriodChanged(self.random.randint(0, rules.limit + 1)),
                BudgetChanged(Budget(usd_per_hour_max=self.random.choice((None, 1.0)))),
            )
        )
        self.orders.append(order)
        self.handle(order)
        self.history.age_max = max(self.history.age_max, rules.age_max)

    def choices(self) -> dict[Callable[[], None], int]:
        return {**super().choices(), self.operator_acts: 6}


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_excluded_peers_get_no_work_and_nothing_is_lost_or_trained_twice(seed: int) -> None:
    fleet = OperatedFleet(seed)
    fleet.run(events=300)
    fleet.end()


def test_operated_runs_go_everywhere() -> None:
    kinds: set[str] = set()
    trained = revoked = 0
    for seed in range(12):
        fleet = OperatedFleet(seed)
        fleet.run(events=500)
        kinds |= {type(order).__name__ for order in fleet.orders}
        counts = fleet.core.status(fleet.now).rollouts
        trained, revoked = trained + counts.trained, revoked + counts.dropped.get("revoked", 0)
    assert len(kinds) == 7
    assert trained > 20
    assert revoked > 5


def test_a_record_with_orders_leads_to_the_same_decisions() -> None:
    fleet = OperatedFleet(3)
    fleet.run(events=300)
    head = Head(FORMAT, "test", 0.0, 0.0, fleet.core.settings, Restored())
    entries = list(entries_of(frame([pack(head), *map(pack, fleet.kept)])))
    assert isinstance(entries[0], Head)
    again = CoordinatorCore(replace(entries[0].settings, validate_every_event=False), entries[0].restored)
    for entry in entries[1:]:
        assert isinstance(entry, EventEntry)
        assert checksum(again.handle(whole(entry, fleet.history.rollouts.__getitem__), entry.now)) == entry.actions_crc


def test_ticks_change_nothing_for_drained_peers() -> None:
    world = started()
    world.handle(PeerDrained(A))
    world.handle(wants("a", 2))
    world.now = 50.0
    world.handle(heartbeat("a", active=0))
    assert not [one for one in only(world.handle(Tick()), SendLeases) if one.peer_id == A]


def test_settings_stay_as_ordered() -> None:
    """The budget in the settings only initialises the core's: a record's head must not change with orders."""
    configured = settings(activation=ActivationSettings(budget=Budget(usd_per_hour_max=5.0)))
    core = CoordinatorCore(configured)
    core.handle(BudgetChanged(Budget()), 0.0)
    assert core.settings.activation.budget == Budget(usd_per_hour_max=5.0)


def test_screens_count_drained_and_banned_peers() -> None:
    world = started()
    world.handle(PeerDrained(A))
    world.handle(PeerBanned(PeerId("b")))
    status = world.core.status(world.now)
    counts = {(one.role, one.state): one.count for one in status.peers_by_state}
    assert counts == {("origin", "joined"): 1, ("peer", "drained"): 1, ("peer", "banned"): 1}
    assert (status.activation.on, status.activation.standby) == (0, 0)
    world.handle(BatchRequested(Step(0)))
    assert "all peers that could work are switched off" in world.core.waiting(world.now).text


# ---------------------------------------------------------------- the run


def test_a_paused_run_keeps_what_is_in_flight_and_goes_on_where_it_stopped() -> None:
    world = started(staleness_limit=4)
    world.handle(wants("a", 4))
    world.handle(wants("b", 4))
    world.handle(BatchRequested(Step(0)))
    assert only(world.handle(RunPaused("power cut")), Note) == [
        Note("paused", "run", "paused by the operator: power cut")
    ]
    assert world.handle(RunPaused()) == []
    delivered = world.finish("a") + world.finish("b")
    delivered += world.handle(wants("a", 4)) + world.handle(wants("b", 4))
    assert not only(delivered, CloseAttempt), "work in progress is accepted"
    assert not only(delivered, RecordBatch)
    assert not only(delivered, SendLeases)
    status = world.core.status(world.now)
    assert status.phase == "paused"
    assert "paused by the operator: power cut" in status.waiting_for
    world.now += 10_000.0
    for name in ("a", "b", "origin"):
        world.handle(heartbeat(name, active=None if name == "origin" else 0))
    world.handle(LearnerCalled())
    assert world.core.state.paused
    assert not only(world.handle(Tick()), FailRun), "nobody works, because nobody may"
    actions = world.handle(RunResumed())
    assert only(actions, Note)[0] == Note("resumed", "run", "resumed by the operator")
    assert only(actions, RecordBatch)
    assert only(actions, SendLeases)
    assert world.handle(RunResumed()) == []
    assert world.core.status(world.now).phase == "training"


def test_a_run_that_is_finished_early_forms_no_further_batch() -> None:
    world = started()
    world.handle(wants("a", 4))
    world.handle(BatchRequested(Step(0)))
    world.finish("a")
    done = world.core.recorded_batches
    world.handle(BatchRequested(Step(done)))
    world.handle(RunPaused())
    (note,) = only(world.handle(RunFinishing(Step(done), "good enough")), Note)
    assert note.detail == f"ended by the operator: good enough; the learner finishes after step {done}"
    assert world.handle(RunFinishing(Step(9))) == world.handle(RunPaused()) == []
    assert not world.core.paused
    assert (world.core.is_last(Step(done)), done and world.core.is_last(Step(done - 1))) == (True, False)
    later = world.handle(wants("b", 4)) + world.finish("b") + world.handle(BatchRequested(Step(done)))
    assert not only(later, SendLeases)
    assert not only(later, RecordBatch)
    assert world.core.status(world.now).phase == "finishing"
