"""Switching of peers, compared by the core's whole lists of actions."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.model.workers import Pin, Speed
from capacity.replan.events import Problem, ReplanSettings, Solved
from coordinator.core.activation.pool import Assumed, demand_of, worker_of
from coordinator.core.activation.preview import question_of
from coordinator.core.core import CoordinatorCore
from coordinator.core.events.actions import Action, Note, PlanActivation, SendAnnouncement, SendLeases, TellActivation
from coordinator.core.events.events import (
    ActivationPlanFailed,
    ActivationPlanned,
    BatchRequested,
    Event,
    PeerLeft,
    StepFinished,
    Tick,
)
from coordinator.core.events.operator_events import (
    PeerPinned,
    PricesChanged,
    PublishPeriodChanged,
    StalenessLimitChanged,
)
from coordinator.core.events.prices import ActivationSettings, Mode, Price
from coordinator.core.flight_format import FORMAT, EventEntry, Head, checksum, entries_of, event_entry, frame, pack
from coordinator.core.leases import forecast
from rollcast.wire.ids import PeerId, Step
from tests.coordinator.core_world import World, announced, held, joined, only, wants

REPLAN = ReplanSettings(dwell_s=0.0, interval_s=1000.0, gather_s=1.0)


def world(mode: Mode = "act", **changes: Any) -> World:
    """Return a world with an origin and two peers that hold version 0."""
    made = World(
        activation=ActivationSettings(mode=mode, prices=(Price(name="b", usd_per_hour=2.0),), replan=REPLAN, **changes),
        staleness_limit=4,
        groups_per_step=1,
    )
    made.start("a", "b")
    return made


def pinned(name: str, pin: Pin) -> PeerPinned:
    return PeerPinned(PeerId(name), pin)


def work(made: World, steps: int = 12) -> list[Action]:
    """Run steps in which both peers work, so that everything is measured; return the actions."""
    event_entry: list[Action] = []
    for step in range(steps):
        for name in ("a", "b"):
            made.handle(wants(name, 1))
        made.now += 1.0
        for name in ("a", "b"):
            made.finish(name)
        event_entry += made.handle(BatchRequested(Step(step)))
        made.now += 2.0
        event_entry += made.handle(Tick())
    return event_entry


def planned_problem(made: World) -> Problem:
    event_entry = work(made)
    (plan,) = only(event_entry, PlanActivation)
    return plan.problem


class TestPins:
    @pytest.mark.parametrize("mode", ["off", "advise", "act"])
    def test_hold_in_every_mode(self, mode: Mode) -> None:
        made = world(mode)
        reason = "off: pinned by the operator"
        actions = made.handle(pinned("a", "off"))
        assert TellActivation(PeerId("a"), False, reason) in actions
        assert Note("standby", "a", reason) in actions
        assert only(made.handle(wants("a", 2)), SendLeases) == []
        on = made.handle(pinned("a", "on"))
        assert TellActivation(PeerId("a"), True, "on: pinned by the operator") in on
        assert [one.peer_id for one in only(on, SendLeases)] == ["a"]

    def test_a_peer_that_is_no_longer_pinned_works_where_no_model_decides(self) -> None:
        made = world("off")
        made.handle(pinned("a", "off"))
        assert TellActivation(PeerId("a"), True, "on: no longer pinned off") in made.handle(pinned("a", ""))

    @pytest.mark.parametrize("pin", ["off", "on"])
    def test_a_pin_that_is_gone_explains_no_state(self, pin: str) -> None:
        made = world("off")
        member = made.core.state.members.get(PeerId("a"))
        assert member is not None
        made.handle(pinned("a", "off"))
        made.handle(pinned("a", pin))
        assert member.reason == f"{pin}: pinned by the operator"
        made.handle(pinned("a", ""))
        assert member.reason == ""

    def test_outlive_a_session(self) -> None:
        made = world("off")
        made.handle(pinned("a", "off"))
        made.handle(PeerLeft(PeerId("a"), "gone"))
        assert TellActivation(PeerId("a"), False, "off: pinned by the operator") in made.handle(joined("a"))
        made.handle(held("a", 0))
        assert only(made.handle(wants("a", 2)), SendLeases) == []

    def test_a_standby_peer_finishes_what_it_holds(self) -> None:
        made = world("off")
        made.handle(wants("a", 2))
        made.handle(pinned("a", "off"))
        made.finish("a")
        assert made.core.status(0.0).rollouts.accepted == 2


class TestPlans:
    def test_are_of_what_was_measured(self) -> None:
        problem = planned_problem(world())
        assert {one.worker_id: (one.usd_per_hour, one.active) for one in problem.workers} == {
            "a": (0.0, True),
            "b": (2.0, True),
        }
        assert all(one.speeds[0].rollouts_per_second > 0 for one in problem.workers)
        assert (problem.demand.rollouts_per_step, problem.demand.staleness_limit) == (2, 4)

    def test_have_the_run_s_groups_rules_and_lengths(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forecast, "LENGTHS_NEEDED", 8)
        made = world(learner_usd_per_hour=20.0)
        work(made)
        demand = demand_of(made.core.state, made.now)
        assert demand is not None
        assert demand.learner_usd_per_hour == 20.0
        settings, conduct = made.core.state.settings, demand.conduct
        assert conduct.samples_per_group == settings.samples_per_group == 2
        assert conduct.lead_margin_steps == settings.lead_margin_steps
        assert (conduct.prefetch_batches, conduct.prefetch_s) == (settings.prefetch_batches, settings.prefetch_s)
        assert conduct == question_of(made.core.state, None, made.now).conduct
        assert len(demand.length_quantiles) == 100
        assert demand.length_quantiles[0] >= 1.0

    def test_have_the_time_that_publishing_took(self) -> None:
        made = world()
        work(made)
        made.handle(StepFinished(Step(20), {}))
        made.now += 3.0
        made.handle(announced(20))
        demand = demand_of(made.core.state, made.now)
        assert demand is not None
        assert demand.conduct.t_publish_s == 3.0

    def test_learn_from_peers_that_leave_without_being_drained(self) -> None:
        made = world()
        problem = planned_problem(made)
        made.handle(ActivationPlanned(Solved(number=problem.number)))
        made.handle(PeerLeft(PeerId("b"), "gone"))
        actions: list[Action] = []
        for _ in range(4):
            made.now += 1.5
            actions += made.handle(wants("a", 1)) + made.handle(Tick())
        (plan,) = only(actions, PlanActivation)
        assert [one.preemptions_per_hour > 0.0 for one in plan.problem.workers] == [True]

    def test_switch_peers_with_a_reason(self) -> None:
        made = world()
        problem = planned_problem(made)
        solved = Solved(
            number=problem.number, turn_off=(("b", "off: too dear"),), reasons=(("a", "on: free"),), on=1, off=1
        )
        actions = made.handle(ActivationPlanned(solved))
        assert TellActivation(PeerId("b"), False, "off: too dear") in actions
        status = made.core.status(made.now)
        peers = {one.name: one for one in status.peers}
        assert (peers["b"].state, peers["b"].reason, peers["b"].standby) == ("standby", "off: too dear", True)
        assert peers["a"].reason.startswith("on: free")
        assert (status.activation.on, status.activation.standby, status.activation.switches) == (1, 1, 1)
        assert only(made.handle(wants("b", 2)), SendLeases) == []

    def test_are_advice_where_they_are_not_acted_on(self) -> None:
        made = world("advise")
        solved = Solved(number=planned_problem(made).number, turn_off=(("b", "off: too dear"),))
        assert only(made.handle(ActivationPlanned(solved)), TellActivation) == []
        peers = {one.name: one for one in made.core.status(made.now).peers}
        assert "advice: off: too dear" in peers["b"].reason
        assert not peers["b"].standby

    def test_that_fail_change_nothing(self) -> None:
        made = world()
        problem = planned_problem(made)
        actions = made.handle(ActivationPlanFailed(problem.number, "it broke"))
        assert actions == [Note("activation_failed", f"plan {problem.number}", "it broke")]
        assert made.core.status(made.now).activation.failed == "it broke"

    def test_are_made_anew_when_prices_change(self) -> None:
        made = world()
        made.handle(ActivationPlanned(Solved(number=planned_problem(made).number)))
        made.handle(PricesChanged((Price(name="a", usd_per_hour=1.0),)))
        made.handle(Tick())
        made.now += 2.0
        (plan,) = only(made.handle(Tick()), PlanActivation)
        assert "costs" in plan.problem.trigger

    def test_never_leave_the_run_without_workers(self) -> None:
        made = world()
        made.handle(ActivationPlanned(Solved(number=planned_problem(made).number, turn_off=(("b", "off: too dear"),))))
        made.handle(PeerLeft(PeerId("a"), "gone", finished=True))
        made.now += 2.0
        assert TellActivation(PeerId("b"), True, "on: no other worker is left") in made.handle(Tick())


class TestStandby:
    def off(self, *, dark: bool, **changes: Any) -> World:
        made = world(**changes)
        solved = Solved(number=planned_problem(made).number, turn_off=(("b", "off: so"),), dark=("b",) if dark else ())
        made.handle(ActivationPlanned(solved))
        return made

    def receivers(self, made: World) -> list[str]:
        event_entry = only(made.handle(announced(1)), SendAnnouncement)
        return [peer_id for one in event_entry for peer_id in one.peer_ids if peer_id != "origin"]

    def test_continues_to_receive_where_that_is_cheap(self) -> None:
        assert self.receivers(self.off(dark=False)) == ["a", "b"]
        assert self.receivers(self.off(dark=True)) == ["a"]

    def test_as_the_operator_wants_it(self) -> None:
        assert self.receivers(self.off(dark=True, standby_receives="always")) == ["a", "b"]
        assert self.receivers(self.off(dark=False, standby_receives="never")) == ["a"]

    def test_is_not_waited_for_in_t_bcast(self) -> None:
        made = self.off(dark=False)
        made.handle(announced(1))
        made.now += 3.0
        made.handle(held("a", 1))
        assert made.core.status(made.now).t_bcast_s.last == 3.0

    def test_receives_the_latest_announcements_when_it_is_switched_on(self) -> None:
        made = self.off(dark=True)
        made.handle(announced(1))
        event_entry = only(made.handle(pinned("b", "on")), SendAnnouncement)
        assert [(one.peer_ids, one.version) for one in event_entry] == [(("b",), 0), (("b",), 1)]


class TestStalenessLimit:
    def test_drops_what_is_too_old_for_it(self) -> None:
        made = world()
        made.handle(StalenessLimitChanged(1))
        assert made.core.rules.limit == 1
        assert made.core.rules.limit_least == 0

    def test_is_never_below_what_kappa_needs(self) -> None:
        made = world()
        made.handle(PublishPeriodChanged(3))
        with pytest.raises(ValueError, match="S must be 2 or more"):
            made.handle(StalenessLimitChanged(1))


def test_a_replay_of_the_record_comes_to_the_same_decisions() -> None:
    """Through the bytes of the flight record, settings and the planner's answers included."""
    made = world()
    head = Head(FORMAT, "", 0.0, 0.0, made.core.settings, None)
    entries = [pack(head)]
    live = CoordinatorCore(made.core.settings)
    for event in story():
        entries.append(pack(event_entry(made.now, event, live.handle(event, made.now))))
    first, *rest = entries_of(frame(entries))
    assert isinstance(first, Head)
    again = CoordinatorCore(first.settings)
    for entry in rest:
        assert isinstance(entry, EventEntry)
        assert checksum(again.handle(entry.event, entry.now)) == entry.actions_crc
    assert len(rest) == len(entries) - 1


def story() -> list[Event]:
    solved = Solved(number=1, turn_off=(("b", "off: so"),), reasons=(("a", "on: so"),), dark=("b",), remedies=("S",))
    return [
        joined("origin", role="origin"),
        joined("a"),
        joined("b"),
        announced(0),
        pinned("a", "off"),
        PricesChanged((Price(hardware="*", usd_per_hour=1.0),)),
        StalenessLimitChanged(2),
        ActivationPlanned(solved),
        ActivationPlanFailed(2, "it broke"),
        pinned("a", ""),
    ]


def test_what_is_not_measured_well_is_assumed_of_peers_like_it() -> None:
    state = world().core._state
    a, b = (state.members.get(PeerId(name)) for name in ("a", "b"))
    assert a is not None
    assert b is not None

    def assumed(known: float, *, standby: str = "", had_nothing_to_do: bool = True) -> float:
        b.reputation.slots_per_s, b.reputation.standby = known, standby
        return Assumed(state).slots_per_s(b, had_nothing_to_do=had_nothing_to_do)

    assert assumed(0.0) == 0.0  # nobody was measured
    a.reputation.slots_per_s = 5.0
    assert assumed(0.0) == 5.0
    assert assumed(0.0, had_nothing_to_do=False) == 0.0
    assert assumed(4.2) == 4.2
    assert assumed(4.2, standby="off") == 5.0
    assert assumed(3.0, standby="off") == 3.0


def test_a_worker_that_plays_episodes_is_as_fast_as_it_makes_whole_ones() -> None:
    """The planner counted turns for rollouts, and thought a fleet of a fifth of the workers enough."""
    world = World()
    world.start("a")
    state = world.core.state
    (member,) = [one for one in state.members if one.name == "a"]

    def speed() -> Speed:
        (found,) = worker_of(state, member, (), 0.0, 10.0).speeds
        return found

    assert speed().rollouts_per_second == 10.0
    for _ in range(forecast.EPISODES_NEEDED):
        state.forecast.episode_ended(5, seconds=30.0)
    assert speed().rollouts_per_second == pytest.approx(2.0)
    assert speed().t_gen_p90_s == 30.0
