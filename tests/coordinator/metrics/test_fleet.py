"""Test the cost of workers on screens and in metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client.core import Metric

from capacity.fleet.budget import Limits
from capacity.fleet.events import OffersSeen, WorkersWanted
from capacity.fleet.fleet import FleetManager
from capacity.fleet.state import FleetSettings, Restored
from capacity.model.workers import Worker
from capacity.providers.base import Offer
from coordinator.metrics.fleet import build_spending, families


def manager() -> FleetManager:
    settings = FleetSettings(run_id="run", providers=("p",), limits=Limits(usd_per_hour_max=4.0, usd_max=10.0))
    found = FleetManager(settings, Restored(), lambda low, high: high, 0.0)
    worker = Worker(
        worker_id="a", speeds=(), usd_per_hour=3.6, provider="p", upload_bytes_per_second=0, download_bytes_per_second=0
    )
    found.handle(OffersSeen("p", (Offer(worker=worker),)), 0.0)
    found.handle(WorkersWanted({"a": "planned", "b": "planned"}), 0.0)
    found.handle(WorkersWanted({"a": "planned", "b": "planned"}), 500.0)
    return found


def values(spending: dict[str, Any] | None) -> dict[tuple[str, ...], float]:
    found: list[Metric] = list(families(spending))
    return {(sample.name, *sample.labels.values()): sample.value for family in found for sample in family.samples}


def test_the_status_adds_up() -> None:
    spending = build_spending(manager(), 1000).to_json()
    assert (spending["usd_per_hour"], spending["spent_usd"], spending["usd_max"]) == (3.6, 0.5, 10.0)
    assert spending["usd_per_accepted_rollout"] == 0.0005
    assert list(spending["providers"]) == [
        {"provider": "p", "machine_usd": 0.5, "egress_usd": 0.0, "forecast_usd": 0.5}
    ]
    assert [(one["tag"], one["phase"], one["spent_usd"]) for one in spending["workers"]] == [
        ("run.a.1", "starting", 0.5)
    ]
    assert spending["held_back"] == {"b": "no provider offers it now"}


def test_cost_per_rollout_is_none_before_the_first() -> None:
    assert build_spending(manager(), 0).usd_per_accepted_rollout is None


def test_metrics_say_the_same() -> None:
    assert values(build_spending(manager(), 1000).to_json()) == {
        ("rollcast_spending_usd_per_hour",): 3.6,
        ("rollcast_spending_committed_usd_per_hour",): 3.6,
        ("rollcast_usd_per_accepted_rollout",): 0.0005,
        ("rollcast_spending_usd_max",): 10.0,
        ("rollcast_spent_usd_total", "p", "machine"): 0.5,
        ("rollcast_spent_usd_total", "p", "egress"): 0.0,
        ("rollcast_provider_workers", "p", "starting"): 1.0,
    }
    assert values(None) == {}
