"""Workers that are not here, in the capacity model's loop."""

from __future__ import annotations

from dataclasses import replace

from capacity.model.workers import Speed, Worker
from capacity.replan.events import Solved
from coordinator.core.events.actions import TellActivation, WantWorker
from coordinator.core.events.events import ActivationPlanned, WorkersOffered
from coordinator.core.events.prices import ActivationSettings
from coordinator.core.members.offers import Offers
from rollcast.wire.ids import PeerId
from tests.coordinator.core.activation.test_activation import planned_problem, work, world
from tests.coordinator.core_world import only


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


def test_links_that_nobody_knows_are_assumed() -> None:
    offers = Offers()
    offers.replace([worker("box")], {}, ActivationSettings())
    assert offers.workers["box"].upload_bytes_per_second == 1.25e6
    assert offers.workers["box"].download_bytes_per_second == 1.25e8


def test_a_worker_of_unknown_speed_is_not_planned_with() -> None:
    offers = Offers()
    offers.replace([replace(worker("box"), speeds=())], {}, ActivationSettings())
    assert offers.workers == {}


def test_a_worker_is_meant_by_its_own_id_and_by_its_peers() -> None:
    offers = Offers()
    offers.replace([worker("near")], {PeerId("p"): worker("far", 0.7)}, ActivationSettings())
    assert [offers.worker_id(one) for one in ("near", "p", "far", "q")] == ["near", "far", "", ""]
    price = offers.price_of(PeerId("p"))
    assert price is not None
    assert price.usd_per_hour == 0.7
    assert offers.price_of(PeerId("near")) is None


def test_what_is_offered_is_planned_with_and_wanted() -> None:
    made = world()
    made.tell(WorkersOffered((worker("box"),), {}))
    problem = planned_problem(made)
    assert {one.worker_id for one in problem.workers} == {"a", "b", "box"}
    solved = Solved(number=problem.number, turn_on=(("box", "on: cheapest"),), reasons=(("box", "on: cheapest"),))
    actions = made.tell(ActivationPlanned(solved))
    assert only(actions, WantWorker) == [WantWorker("box", True, "on: cheapest")]
    assert only(actions, TellActivation) == []


def test_a_peer_that_came_from_a_provider_has_its_price_and_goes_when_it_is_switched_off() -> None:
    made = world()
    made.tell(WorkersOffered((), {PeerId("b"): worker("box", 9.0)}))
    problem = planned_problem(made)
    assert {one.worker_id: one.usd_per_hour for one in problem.workers} == {"a": 0.0, "b": 9.0}
    actions = made.tell(ActivationPlanned(Solved(number=problem.number, turn_off=(("b", "off: too dear"),))))
    assert only(actions, WantWorker) == [WantWorker("box", False, "off: too dear")]


def test_advice_starts_nobody() -> None:
    made = world("advise")
    made.tell(WorkersOffered((worker("box"),), {}))
    problem = planned_problem(made)
    assert only(made.tell(ActivationPlanned(Solved(number=problem.number, turn_on=(("box", "on"),)))), WantWorker) == []


def test_a_worker_that_is_not_offered_any_more_is_not_planned_with() -> None:
    made = world()
    made.tell(WorkersOffered((worker("box"), worker("other")), {}))
    work(made, 2)
    made.tell(WorkersOffered((worker("other"),), {}))
    assert {one.worker_id for one in planned_problem(made).workers} == {"a", "b", "other"}
