"""Make a small plan, for tests of its readers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from capacity.model.assumptions import Assumption
from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker
from capacity.planner.planner import plan
from capacity.planner.plans import Plan
from capacity.questions.plan_json import Inputs, PlanDocument, document_of

MB = 1e6
SPEEDS = (Speed(8, 0.8, 20.0, 10.0), Speed(16, 1.2, 30.0, 13.0))


def sample_demand(**changes: object) -> Demand:
    demand = Demand(
        rollouts_per_step=240,
        t_train_s=60.0,
        staleness_limit=4,
        update_bytes=1.6e9,
        learner_upload_bytes_per_second=125 * MB,
    )
    return replace(demand, **changes)  # type: ignore[arg-type]


def sample_worker(number: int, usd_per_hour: float, **changes: object) -> Worker:
    worker = Worker(
        worker_id=f"w-{number}",
        speeds=SPEEDS,
        usd_per_hour=usd_per_hour,
        upload_bytes_per_second=50 * MB,
        download_bytes_per_second=100 * MB,
        hardware="L4",
        region="aws:us-east-1",
    )
    return replace(worker, **changes)  # type: ignore[arg-type]


def sample_workers() -> list[Worker]:
    workers = [sample_worker(number, 0.4 + 0.05 * number) for number in range(8)]
    return [*workers, sample_worker(8, 0.3, speeds=(Speed(1, 0.01, 4000.0, 900.0),), hardware="T4")]


@cache
def sample_plan() -> Plan:
    return plan(sample_demand(), sample_workers())


@cache
def infeasible_sample() -> Plan:
    return plan(sample_demand(staleness_limit=1), sample_workers())


def sample_document(made: Plan | None = None) -> PlanDocument:
    inputs = Inputs(pool="pool.csv", demand="demand.toml", model="qwen3-8b", rows=9)
    assumptions = (Assumption("efficiency", 0.7, "of the roofline", "fitted", 0.24),)
    return document_of(
        made or sample_plan(),
        inputs=inputs,
        assumptions=assumptions,
        software="0.1.0",
        made_at="2026-11-01T00:00:00+00:00",
    )
