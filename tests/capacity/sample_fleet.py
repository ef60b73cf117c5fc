"""Make a plan that chooses certain workers, and a run's fleet, for tests of what applies the one to the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capacity.fleet.overview import NO_FLEET, FleetOverview, OfferedWorker
from capacity.planner.plans import Candidate
from capacity.questions.plan_json import PlanDocument
from tests.capacity.providers.pool_machines import pool_row
from tests.capacity.sample_plan import sample_document, sample_plan, sample_worker


def chosen_document(*chosen: str, usd_per_hour: float = 3.6) -> PlanDocument:
    """Return a plan that chooses these workers, of a pool with two local machines and one for Terraform."""
    candidates = tuple(
        Candidate(replace(sample_worker(0, usd_per_hour), worker_id=one), True, None, usd_per_hour, 1.0, 0.0, "on")
        for one in chosen
    )
    local = pool_row(worker_id="local", count=2, start="local", usd_per_hour=3.6)
    cloud = pool_row(worker_id="cloud", start="terraform", region="aws:us-east-1a", instance_type="g6.xlarge")
    made = sample_document(replace(sample_plan(), candidates=candidates))
    return replace(made, machines=(local, cloud))


def offered(worker_id: str, **changes: Any) -> OfferedWorker:
    return replace(OfferedWorker(worker_id, "local", 3.6, "off", False, "", "", 0.0), **changes)


def fleet_of(*workers: OfferedWorker) -> FleetOverview:
    return replace(NO_FLEET, want="apply", offers_known=True, workers=workers)
