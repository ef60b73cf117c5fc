"""Explain why no set of workers is feasible, and what would change that."""

from __future__ import annotations

from capacity.model.demand import Demand
from capacity.model.units import bandwidth
from capacity.planner.columns import Columns
from capacity.planner.max_rate import Reach
from capacity.planner.plans import Infeasible, RowName

MB = 1e6


def binding_row(demand: Demand, columns: Columns, reach: Reach | None, cheapest_usd_per_hour: float | None) -> RowName:
    """Return the row that cannot be met.

    Args:
        reach: what the pool can give at the best split; None where no rollout is young enough.
        cheapest_usd_per_hour: cost of the cheapest set that holds all rows but the budget.
    """
    if cheapest_usd_per_hour is not None:
        return "budget"
    if reach is None:
        return "staleness" if len(columns) else "rate"
    stopped = reach.stopped_by
    if stopped is not None:
        return stopped
    if (columns.pin > 0).any() and not reach.programme.eligible[columns.pin > 0].all():
        return "pins"
    if demand.share_without_a_region > 0:
        return "region"
    return "chance" if demand.chance_z > 0 else "relay"


def explained(
    demand: Demand,
    columns: Columns,
    reach: Reach | None,
    cheapest_usd_per_hour: float | None,
    remedies: tuple[str, ...],
) -> Infeasible:
    """Return the reason in words with figures; arguments as for ``binding_row``."""
    row = binding_row(demand, columns, reach, cheapest_usd_per_hour)
    if row == "budget":
        what = (
            f"the cheapest set costs {cheapest_usd_per_hour:.4g} $/h; the budget is {demand.usd_per_hour_max:.4g} $/h"
        )
        return Infeasible(row, what, remedies)
    if reach is None:
        return Infeasible(row, _none_in_time(demand, columns), remedies)
    return Infeasible(row, _what(row, reach), remedies)


def unproven(why: Infeasible, lp_bound: float) -> Infeasible:
    """Return the reason where no set was found, although the rows together do not rule one out.

    Args:
        lp_bound: USD/h of the relaxation, which takes parts of workers.
    """
    what = f"no set of whole workers was found in the time limit; with parts of workers {lp_bound:.4g} $/h suffice"
    if why.binding == "budget":
        what = f"{why.what}; that no cheaper set exists is not proven, the bound is {lp_bound:.4g} $/h"
    return Infeasible(why.binding, what, why.remedies, proven=False)


def _none_in_time(demand: Demand, columns: Columns) -> str:
    times = columns.generation_times_s()
    if not times.size:
        return _no_rate(demand, columns)
    fastest = f"the fastest worker's rollout takes {times[0]:.4g} s (p90)"
    limit, steps = demand.staleness_limit, demand.publish_every_steps
    if limit <= steps:
        return f"{fastest}, but no rollout is young enough where S = {limit} is not above kappa = {steps}"
    every = "step" if steps == 1 else f"{steps} steps"
    allowed = f"S = {limit} with a version every {every} of {demand.t_train_s:.4g} s"
    if demand.budget_s > 0:
        return f"{fastest}, and {allowed} leaves {demand.budget_s:.4g} s for generating and broadcasting together"
    return (
        f"publishing takes too long for S: {demand.update_bytes / MB:.4g} MB take {demand.conduct.t_publish_s:.4g} s "
        f"over an uplink of {bandwidth(demand.learner_upload_bytes_per_second)} before workers can begin to receive "
        f"them, and {allowed} allows {demand.budget_s + demand.fixed_s:.4g} s for publishing, broadcasting and "
        "generating together"
    )


def _no_rate(demand: Demand, columns: Columns) -> str:
    """Return why no worker generates anything."""
    if not len(columns):
        return "the pool is empty"
    if not any(worker.speeds for worker in columns.workers):
        return "no worker of the pool has a known speed"
    return (
        f"no worker has time to generate: a swap to a new version stops it for {demand.t_swap_s:.4g} s, and one is "
        f"published every {demand.version_period_s:.4g} s"
    )


def _what(row: RowName, reach: Reach) -> str:
    programme, split = reach.programme, reach.programme.split
    demand, rho = programme.demand, programme.copy_bytes_per_second
    needed = f"{programme.rate_bought:.4g} rollouts/s are needed"
    within = f"{demand.update_bytes / MB:.4g} MB within {split.t_bcast_s:.4g} s"
    match row:
        case "learner_uplink":
            have = demand.learner_upload_bytes_per_second
            return f"the learner's uplink of {bandwidth(have)} is below the {bandwidth(rho)} that {within} take"
        case "relay":
            return (
                f"{reach.rate:.4g} rollouts/s at most get {within} over their own and the learner's uplinks; {needed}"
            )
        case "downlink":
            makes = f"make {reach.without_relaying:.4g} rollouts/s"
            return f"workers with a downlink of {bandwidth(rho)} ({within}) {makes}; {needed}"
        case "pins":
            return f"a worker that is pinned on is too slow, or its downlink is, for {within}"
        case "region":
            share = demand.share_without_a_region
            return f"no set leaves {share:.0%} of the rate when any one region is lost"
        case "chance":
            return f"no set gives {programme.rate_bought:.4g} rollouts/s at {demand.chance_z:.3g} standard deviations"
        case _:
            if programme.rate_needed is None:
                return "workers that pause while they receive would receive all the time"
            return (
                f"all workers together make {reach.without_links:.4g} rollouts/s that are young enough for S; {needed}"
            )
