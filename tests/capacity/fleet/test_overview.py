"""Test the overview of a fleet: each worker's state and the reason for it."""

from __future__ import annotations

from capacity.fleet.budget import Limits
from capacity.fleet.events import StartFailed, StartSucceeded, StopSucceeded, WorkerJoined, WorkersWanted
from capacity.fleet.overview import FleetOverview, overview_of
from tests.capacity.fleet.test_fleet import Fleet, offer, tag


def overview(fleet: Fleet, *wanted: str) -> FleetOverview:
    return overview_of(fleet.manager, frozenset(wanted), want="apply", offers_known=True)


def states(fleet: Fleet, *wanted: str) -> dict[str, str]:
    return {one.worker_id: one.state for one in overview(fleet, *wanted).workers}


def test_states_follow_a_worker_from_its_offer_to_its_stop() -> None:
    fleet = Fleet()
    fleet.offer(offer("a"), offer("b"))
    assert states(fleet) == {"a": "off", "b": "off"}
    assert states(fleet, "a") == {"a": "waiting", "b": "off"}  # the manager has not been told yet
    fleet.want("a")
    assert states(fleet, "a") == {"a": "starting", "b": "off"}
    fleet.handle(StartSucceeded(tag("a"), "here"))
    fleet.handle(WorkerJoined(tag("a")))
    assert states(fleet, "a") == {"a": "on", "b": "off"}
    fleet.want()
    assert states(fleet) == {"a": "stopping", "b": "off"}


def test_a_worker_whose_start_failed_is_told_with_the_reason_until_its_next_start() -> None:
    fleet = Fleet()
    fleet.offer(offer("a"))
    fleet.want("a")
    fleet.handle(StartFailed(tag("a"), "no capacity"))
    (failed,) = overview(fleet, "a").workers
    assert (failed.state, failed.why) == ("failed", "no capacity")
    fleet.handle(StopSucceeded(tag("a")))
    assert states(fleet, "a") == {"a": "failed"}
    assert states(fleet) == {"a": "off"}
    fleet.handle(WorkersWanted({"a": "planned"}), after_s=3600.0)
    assert states(fleet, "a") == {"a": "starting"}


def test_a_worker_that_the_budget_does_not_allow_is_refused() -> None:
    fleet = Fleet(limits=Limits(usd_per_hour_max=1.0))
    fleet.offer(offer("a"), offer("b", usd_per_hour=0.5))
    fleet.want("a", "b")
    (_, refused) = overview(fleet, "a", "b").workers
    assert (refused.state, "the limit is 1 $/h" in refused.why) == ("refused", True)
    assert (overview(fleet).usd_per_hour, overview(fleet).usd_per_hour_max) == (1.0, 1.0)
