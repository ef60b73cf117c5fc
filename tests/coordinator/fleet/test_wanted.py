"""Test the offers to the capacity model, and the workers that it wants."""

from __future__ import annotations

from typing import Any

from capacity.model.workers import Speed, Worker
from capacity.providers.base import Offer
from coordinator.core.events.actions import WantWorker
from coordinator.core.events.events import WorkersOffered
from coordinator.fleet.wanted import FIRST, RAN_BEFORE, WantedWorkers
from rollcast.wire.ids import PeerId


def offer(worker_id: str, usd_per_hour: float, rate: float = 1.0) -> Offer:
    speeds = (Speed(1, rate, 1.0),) if rate else ()
    return Offer(
        worker=Worker(
            worker_id=worker_id,
            speeds=speeds,
            usd_per_hour=usd_per_hour,
            upload_bytes_per_second=1.0,
            download_bytes_per_second=1.0,
        )
    )


OFFERS = (offer("a", 2.0), offer("b", 3.0, rate=2.0), offer("c", 0.1, rate=0.0))


def update(wanted: WantedWorkers, **changes: Any) -> WorkersOffered | None:
    values: dict[str, Any] = {"begun": frozenset(), "failing": frozenset(), "here": {}, "no_peers": False}
    return wanted.update(OFFERS, **{**values, **changes})


def told(found: WorkersOffered | None) -> dict[str, bool]:
    assert found is not None
    return {worker.worker_id: worker.active for worker in found.workers}


def test_everything_is_offered_once() -> None:
    wanted = WantedWorkers(())
    assert told(update(wanted)) == {"a": False, "b": False, "c": False}
    assert update(wanted) is None
    wanted.take(WantWorker("b", True, "cheapest"))
    assert told(update(wanted)) == {"a": False, "b": True, "c": False}
    wanted.take(WantWorker("b", False, "too dear"))
    wanted.take(WantWorker("b", False, "too dear"))
    assert wanted.reasons == {}


def test_joined_worker_is_replaced_by_its_peer() -> None:
    wanted = WantedWorkers(("b", "gone"))
    assert wanted.reasons["b"] == RAN_BEFORE
    found = update(wanted, here={PeerId("p"): "b"}, begun=frozenset({"b"}))
    assert told(found) == {"a": False, "c": False}
    assert found is not None
    assert found.backed == {PeerId("p"): OFFERS[1].worker}
    assert wanted.reasons == {"b": RAN_BEFORE}


def test_failing_workers_are_not_offered_for_a_while() -> None:
    wanted = WantedWorkers(())
    wanted.take(WantWorker("a", True, "cheapest"))
    assert told(update(wanted, failing=frozenset({"a"}), begun=frozenset({"a"}))) == {"b": False, "c": False}
    assert "a" in wanted.reasons  # a running worker stays wanted while other starts fail
    update(wanted, failing=frozenset({"a"}))
    assert wanted.reasons == {}


def test_without_peers_the_best_value_is_wanted_first() -> None:
    wanted = WantedWorkers(())
    update(wanted, no_peers=True)
    assert wanted.reasons == {"b": FIRST}
    other = WantedWorkers(())
    update(other, no_peers=True, failing=frozenset({"a", "b"}))
    assert other.reasons == {"c": FIRST}
