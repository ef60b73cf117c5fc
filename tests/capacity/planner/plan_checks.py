"""Check a plan from scratch: plain Python from the demand and the workers, without any of the planner's modules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from capacity.model.broadcast_bound import broadcast_seconds, stripe_factor
from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker
from capacity.planner.plans import Plan

TOLERANCE = 1e-8


def check(plan: Plan) -> None:
    """Recompute every row of a feasible plan, its costs and its figures."""
    demand = plan.demand
    chosen = [(one.worker, one.speed) for one in plan.chosen]
    assert all(speed in worker.speeds for worker, speed in chosen)
    on = [(worker, speed) for worker, speed in chosen if speed is not None]
    assert len(on) == len(chosen)
    t_gen_s = max(speed.t_gen_p90_s for _, speed in on)
    assert math.isclose(t_gen_s, plan.t_gen_p90_s)
    assert holds(demand, on, demand.broadcast_s(plan.split.t_gen_s))
    assert t_gen_s <= plan.split.t_gen_s
    total_s = plan.t_bcast_s + t_gen_s
    assert total_s <= demand.budget_s * (1 + TOLERANCE)
    assert plan.staleness_needed <= demand.staleness_limit
    assert math.isclose(plan.workers_usd_per_hour, sum(worker.usd_per_hour for worker, _ in on), rel_tol=1e-9)
    usd = usd_per_hour(demand, [worker for worker, _ in on], plan.split.t_bcast_s)
    assert usd is not None
    assert math.isclose(plan.usd_per_hour, usd, rel_tol=1e-9, abs_tol=1e-12)
    assert all(row.slack >= -TOLERANCE * max(1.0, abs(row.limit)) for row in plan.rows), plan.rows
    assert {worker.worker_id for worker, _ in on} >= {
        one.worker.worker_id for one in plan.candidates if one.worker.pin == "on"
    }
    assert not any(worker.pin == "off" for worker, _ in on)


def useful(demand: Demand, worker: Worker, speed: Speed) -> float:
    swapping = 1.0 - demand.t_swap_s / (demand.publish_every_steps * demand.t_train_s)
    return speed.rollouts_per_second * (1.0 - worker.preemption_loss) * max(0.0, swapping)


def holds(demand: Demand, on: Sequence[tuple[Worker, Speed]], tau_s: float) -> bool:
    """Return whether a set gives the rate within every row when versions are spread within tau."""
    rate = sum(useful(demand, worker, speed) for worker, speed in on)
    step_s = demand.t_train_s - (tau_s / demand.publish_every_steps if demand.pauses_while_receiving else 0.0)
    if step_s <= 0:
        return False
    needed = demand.rollouts_per_step / step_s
    variance = variance_of(demand, on)
    if rate - demand.chance_z * math.sqrt(variance) < demand.headroom * needed * (1 - TOLERANCE):
        return False
    for region in {worker.region for worker, _ in on if worker.region}:
        without = sum(useful(demand, worker, speed) for worker, speed in on if worker.region != region)
        if without < demand.share_without_a_region * needed * (1 - TOLERANCE):
            return False
    return t_bcast_s(demand, [worker for worker, _ in on]) <= tau_s * (1 + TOLERANCE)


def variance_of(demand: Demand, on: Sequence[tuple[Worker, Speed]]) -> float:
    """Return the sum of the covariances of every two workers' useful rates."""
    deviations = [
        (worker, useful(demand, worker, speed) * math.sqrt(worker.preemption_loss / (1.0 - worker.preemption_loss)))
        for worker, speed in on
        if worker.preemption_loss < 1.0
    ]
    total = 0.0
    for one, own in deviations:
        for other, others in deviations:
            together = demand.region_correlation if one.region and one.region == other.region else 0.0
            total += own * others * (1.0 if one is other else together)
    return total


def t_bcast_s(demand: Demand, workers: Iterable[Worker]) -> float:
    import numpy as np

    listed = list(workers)
    return broadcast_seconds(
        demand.update_bytes,
        demand.learner_upload_bytes_per_second,
        np.array([worker.upload_bytes_per_second if worker.relays else 0.0 for worker in listed]),
        np.array([worker.download_bytes_per_second for worker in listed]),
        demand.topology,
    )


def usd_per_hour(demand: Demand, workers: Sequence[Worker], tau_s: float) -> float | None:
    """Return prices and egress with the cheapest senders; None where not all copies can be sent in time."""
    gb_per_hour = demand.update_bytes / 1e9 * 3600.0 / (demand.publish_every_steps * demand.t_train_s)
    rate = stripe_factor(demand.topology) * demand.update_bytes / tau_s
    senders = [
        (demand.learner_egress_usd_per_gb, copies(demand, demand.learner_upload_bytes_per_second, rate, True) - 1)
    ]
    senders += [
        (worker.egress_usd_per_gb, copies(demand, worker.upload_bytes_per_second, rate))
        for worker in workers
        if worker.relays
    ]
    left, usd = len(workers) - 1.0, demand.learner_egress_usd_per_gb * gb_per_hour
    for price, room in sorted(senders):
        sent = min(left, room)
        usd, left = usd + sent * price * gb_per_hour, left - sent
    if left > TOLERANCE * len(workers):
        return None
    return usd + sum(worker.usd_per_hour for worker in workers)


def copies(demand: Demand, upload: float, rate: float, source: bool = False) -> float:
    match demand.topology.shape:
        case "stripes":
            return upload / rate
        case "tree":
            return math.floor(upload / rate + 1e-9)
        case "chain":
            return min(1, math.floor(upload / rate + 1e-9))
        case "star":
            return upload / rate if source else 0.0


def cheapest_usd_per_hour(demand: Demand, workers: Sequence[Worker]) -> float | None:
    """Return the least cost over every split and every subset; None if no subset holds every row."""
    best: float | None = None
    times = sorted({speed.t_gen_p90_s for worker in workers for speed in worker.speeds})
    for t_gen_s in times:
        tau_s = demand.broadcast_s(t_gen_s)
        if tau_s <= 0:
            continue
        able = [(worker, speed) for worker in workers if (speed := worker.fastest_within(t_gen_s)) is not None]
        for size in range(1, len(able) + 1):
            for on in itertools.combinations(able, size):
                chosen = [worker for worker, _ in on]
                usd = usd_per_hour(demand, chosen, tau_s)
                if usd is None or (best is not None and usd >= best) or not holds(demand, on, tau_s):
                    continue
                best = usd
    return best
