"""Workers that generate nothing: on standby, also over a coordinator's restart, or only offered."""

from __future__ import annotations

from dataclasses import replace

from capacity.model.workers import Speed, Worker
from capacity.replan.corrections import Corrections
from capacity.replan.events import Solved
from coordinator.core.events.actions import Note, SendLeases, TellActivation, WantWorker
from coordinator.core.events.events import (
    ActivationPlanned,
    BatchRequested,
    LearnedRestored,
    PeerLeft,
    StandbyRestored,
    Tick,
    WorkersOffered,
)
from coordinator.core.events.operator_events import PeerPinned
from coordinator.core.events.prices import ActivationSettings
from coordinator.core.members import standby
from coordinator.core.members.offers import Offers
from rollcast.wire.ids import PeerId, Step
from tests.coordinator.core.activation.test_activation import planned_problem, work
from tests.coordinator.core.activation.test_activation import world as planned_world
from tests.coordinator.core_world import World, announced, held, joined, only, wants


def worker(worker_id: str, usd_per_hour: float = 0.5, *, active: bool = False) -> Worker:
    return Worker(
        worker_id=worker_id,
        speeds=(Speed(8, 2.0, 4.0),),
        usd_per_hour=usd_per_hour,
        upload_bytes_per_second=0.0,
        download_bytes_per_second=0.0,
        provider="ssh",
        active=active,
    )


def test_unmeasured_links_get_assumed_rates() -> None:
    offers = Offers()
    offers.replace([worker("box")], {}, ActivationSettings())
    assert offers.workers["box"].upload_bytes_per_second == 1.25e6
    assert offers.workers["box"].download_bytes_per_second == 1.25e8


def test_a_worker_of_unknown_speed_is_not_planned_with() -> None:
    offers = Offers()
    offers.replace([replace(worker("box"), speeds=())], {}, ActivationSettings())
    assert offers.workers == {}


def test_a_worker_is_found_by_its_own_id_and_by_its_peers() -> None:
    offers = Offers()
    offers.replace([worker("near")], {PeerId("p"): worker("far", 0.7)}, ActivationSettings())
    assert [offers.worker_id(one) for one in ("near", "p", "far", "q")] == ["near", "far", "", ""]
    price = offers.price_of(PeerId("p"))
    assert price is not None
    assert price.usd_per_hour == 0.7
    assert offers.price_of(PeerId("near")) is None


def test_offered_workers_are_planned_with_and_wanted() -> None:
    made = planned_world()
    made.handle(WorkersOffered((worker("box"),), {}))
    problem = planned_problem(made)
    assert {one.worker_id for one in problem.workers} == {"a", "b", "box"}
    solved = Solved(number=problem.number, turn_on=(("box", "on: cheapest"),), reasons=(("box", "on: cheapest"),))
    actions = made.handle(ActivationPlanned(solved))
    assert only(actions, WantWorker) == [WantWorker("box", True, "on: cheapest")]
    assert only(actions, TellActivation) == []


def test_a_peer_that_came_from_a_provider_has_its_price_and_goes_when_it_is_switched_off() -> None:
    made = planned_world()
    made.handle(WorkersOffered((), {PeerId("b"): worker("box", 9.0)}))
    problem = planned_problem(made)
    assert {one.worker_id: one.usd_per_hour for one in problem.workers} == {"a": 0.0, "b": 9.0}
    actions = made.handle(ActivationPlanned(Solved(number=problem.number, turn_off=(("b", "off: too dear"),))))
    assert only(actions, WantWorker) == [WantWorker("box", False, "off: too dear")]


def test_advice_starts_no_worker() -> None:
    made = planned_world("advise")
    made.handle(WorkersOffered((worker("box"),), {}))
    problem = planned_problem(made)
    assert (
        only(made.handle(ActivationPlanned(Solved(number=problem.number, turn_on=(("box", "on"),)))), WantWorker) == []
    )


def test_a_worker_that_is_no_longer_offered_is_not_planned_with() -> None:
    made = planned_world()
    made.handle(WorkersOffered((worker("box"), worker("other")), {}))
    work(made, 2)
    made.handle(WorkersOffered((worker("other"),), {}))
    assert {one.worker_id for one in planned_problem(made).workers} == {"a", "b", "other"}


A, B, C = PeerId("a"), PeerId("b"), PeerId("c")

OFF = StandbyRestored({A: ("off: too dear", False), B: ("off: too dear", True)})


def world(mode: str = "act") -> World:
    made = World(activation=ActivationSettings(mode=mode))  # type: ignore[arg-type]
    made.handle(OFF)
    made.handle(joined("origin", role="origin"))
    made.handle(announced(0))
    return made


def test_the_standby_set_is_restored_and_pins_are_orders() -> None:
    made = world()
    made.handle(PeerPinned(C, "off"))
    kept = made.core.standby()
    assert kept == dict(OFF.peers)
    assert standby.from_json(standby.to_json(kept)) == OFF
    assert standby.from_json("{}") == StandbyRestored({})


def test_what_the_model_has_learned_survives_a_restart() -> None:
    """A peer that was preempted raises its market's rate, in the problems of the next coordinator too."""
    before = planned_world()
    planned_problem(before)
    before.handle(PeerLeft(B, "lost"))
    before.now += 3600.0
    work(before, 1)
    learned = before.core.learned()
    assert [one.preemptions > 0 for one in learned.markets] == [True]
    kept = standby.learned_from_json(standby.learned_to_json(learned))
    assert kept == learned
    rates = {}
    for name, restored in (("anew", LearnedRestored()), ("restored", replace(kept, corrections=Corrections(rate=0.8)))):
        after = planned_world()
        after.handle(restored)
        assert after.core.learned().corrections == restored.corrections
        (rates[name], *_) = [one.preemptions_per_hour for one in planned_problem(after).workers]
    assert rates["anew"] == 0.0 < rates["restored"]
    assert standby.learned_from_json("{}") == World(activation=ActivationSettings()).core.learned() == LearnedRestored()


def test_a_peer_that_was_off_is_informed_and_gets_no_work() -> None:
    made = world()
    told = made.handle(joined("a"))
    assert TellActivation(A, False, "off: too dear") in told
    made.handle(held("a", 0))
    made.handle(joined("c"))
    made.handle(held("c", 0))
    assert not only(made.handle(wants("a", 2)), SendLeases)
    assert only(made.handle(wants("c", 2)), SendLeases)


def test_they_are_switched_on_where_no_other_peer_reconnects() -> None:
    made = world()
    for name in ("a", "b"):
        made.handle(joined(name))
        made.handle(held(name, 0))
        made.handle(wants(name, 2))
    made.handle(BatchRequested(Step(0)))
    made.now = 4.0
    assert not only(made.handle(Tick()), TellActivation)  # there is still hope
    for made.now in (8.0, 12.0, 16.0):
        for name in ("a", "b", "origin"):
            made.handle(wants(name, 2))
    made.now = 16.5
    actions = made.handle(Tick())
    reason = "on: no peer that was on has reconnected"
    assert only(actions, TellActivation) == [TellActivation(A, True, reason), TellActivation(B, True, reason)]
    assert Note("activated", A, reason) in actions
    assert {one.peer_id for one in only(actions, SendLeases)} == {A, B}
    assert made.core.standby() == {}


def test_no_peer_is_off_where_no_model_acts() -> None:
    made = world("advise")
    assert made.core.standby() == {}
    assert not only(made.handle(joined("a")), TellActivation)
