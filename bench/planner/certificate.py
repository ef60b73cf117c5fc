"""Check the planner's bounds and verdicts against exhaustive searches; count those that a real set contradicts.

Of ``--small`` pools of 5 to 12 workers every set at every split is judged. Of ``--large`` pools of 150 to 400 every
split's relaxation is rounded and improved to a set of its own. A pool counts as ``false`` if a set costs less than the
bound that the plan prints, or exists although the plan says that none does. ``unproven`` plans choose no worker and say
that this is not proven. ``missed`` plans choose a set that is dearer than another one; ``dearer_max`` is by how much.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bench.machine import Outcome
from bench.planner.capacity_pools import pool
from capacity.model.demand import Demand
from capacity.model.topologies import Topology
from capacity.model.workers import Worker
from capacity.planner.columns import Columns, columns_of
from capacity.planner.linear import relax
from capacity.planner.planner import PlanOptions, holds_pinned, plan, solved
from capacity.planner.plans import Plan
from capacity.planner.programme import Programme, programme_of
from capacity.planner.splits import split_at, times_of
from capacity.planner.totals import totals_of

ROUNDING = 1e-6  # relative: solvers stop at this distance
TOPOLOGIES = (Topology(), Topology(), Topology("stripes", 4), Topology("tree"), Topology("chain"), Topology("star"))


@dataclass(frozen=True, slots=True)
class Judgement:
    """One plan beside the cheapest set that the exhaustive search found, in USD/h; inf where it found none."""

    made: Plan
    cheapest_usd_per_hour: float

    @property
    def is_false(self) -> bool:
        if not self.made.feasible:
            proven = self.made.infeasible is not None and self.made.infeasible.proven
            return proven and math.isfinite(self.cheapest_usd_per_hour)
        bound = max(self.made.lp_bound_usd_per_hour, self.made.integer_bound_usd_per_hour)
        return bound > self.cheapest_usd_per_hour * (1 + ROUNDING) + ROUNDING

    @property
    def dearer(self) -> float:
        """By how much the plan costs more than the cheapest set, as a share; inf where only the plan found none."""
        if not self.made.feasible:
            return math.inf if math.isfinite(self.cheapest_usd_per_hour) else 0.0
        return max(0.0, self.made.usd_per_hour / max(self.cheapest_usd_per_hour, 1e-9) - 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", type=int, default=500, help="pools of 5 to 12 workers")
    parser.add_argument("--large", type=int, default=100, help="pools of 150 to 400 workers")
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    small = [small_judgement(random.Random(arguments.seed + number)) for number in range(arguments.small)]
    large = []
    for number in range(arguments.large):
        large.append(large_judgement(random.Random(arguments.seed + number)))
        print(f"pool {number} of {arguments.large}: false {large[-1].is_false}", file=sys.stderr)
    judged = small + large
    settings = {"small": arguments.small, "large": arguments.large, "seed": arguments.seed}
    refused = [one.made.infeasible for one in judged if one.made.infeasible is not None]
    figures = {
        "pools": float(len(judged)),
        "false": float(sum(one.is_false for one in judged)),
        "infeasible": float(len(refused)),
        "unproven": float(sum(not why.proven for why in refused)),
        "missed_small": float(sum(one.dearer > ROUNDING for one in small)),
        "missed_large": float(sum(one.dearer > ROUNDING for one in large)),
        "dearer_max": max((one.dearer for one in judged if one.made.feasible), default=0.0),
        "seconds_max": max((one.made.solve_s for one in judged), default=0.0),
    }
    return Outcome(settings, figures)


def small_judgement(rng: random.Random) -> Judgement:
    """Plan for a random pool of 5 to 12 workers and try every set at every split."""
    workers = _workers(rng, rng.randint(5, 12))
    demand = _demand(rng, rollouts_per_step=rng.randint(8, 100))
    made = plan(demand, workers, PlanOptions(time_limit_s=5.0, remedies=False))
    return Judgement(made, _least(demand, columns_of(demand, workers), _every_set))


def large_judgement(rng: random.Random) -> Judgement:
    """Plan for a random pool of 150 to 400 workers and search a set at every split."""
    workers = _workers(rng, rng.randint(150, 400))
    demand = _demand(rng, rollouts_per_step=rng.randint(200, 3000))
    made = plan(demand, workers, PlanOptions(remedies=False))
    return Judgement(made, _least(demand, columns_of(demand, workers), _searched_set))


def _least(demand: Demand, columns: Columns, cheapest: Callable[[Programme], float]) -> float:
    programmes = (programme_of(demand, columns, split_at(demand, float(at))) for at in times_of(demand, columns))
    return min((cheapest(one) for one in programmes if holds_pinned(one)), default=math.inf)


def _every_set(programme: Programme) -> float:
    """Return the cost of the cheapest of all sets that hold every row; inf if none does."""
    usable = np.flatnonzero(programme.upper > 0)
    bits = (np.arange(1, 1 << usable.size)[:, None] >> np.arange(usable.size)) & 1
    totals = totals_of(programme)
    if programme.origin_feeds < 1 or not np.isfinite(programme.rate_bought) or not usable.size:
        return math.inf
    usd, rate, copies = totals.judged(bits @ totals.features[usable])
    return float(usd[(rate == 0) & (copies == 0)].min(initial=math.inf))


def _searched_set(programme: Programme) -> float:
    relaxation = relax(programme)
    found = solved(relaxation, 0.0, 0.0).best if relaxation is not None else None
    return found.usd_per_hour if found is not None else math.inf


def _workers(rng: random.Random, count: int) -> list[Worker]:
    """Return workers whose speeds repeat, as those of one GPU type do, so that the splits can be tried one by one."""
    drawn = pool(count, rng.randrange(1 << 30), pace_spread=0.0)
    return [replace(one, relays=rng.random() < 0.8) for one in drawn]


def _demand(rng: random.Random, rollouts_per_step: int) -> Demand:
    kappa = rng.choice([1, 1, 1, 2])
    return Demand(
        rollouts_per_step=rollouts_per_step,
        t_train_s=rng.choice([30.0, 60.0, 90.0]),
        staleness_limit=kappa + rng.randint(2, 7),
        publish_every_steps=kappa,
        update_bytes=rng.lognormvariate(19.5, 1.0),
        learner_upload_bytes_per_second=rng.lognormvariate(18.0, 0.7),
        learner_egress_usd_per_gb=rng.choice([0.0, 0.05]),
        topology=rng.choice(TOPOLOGIES),
        t_swap_s=rng.choice([0.0, 2.0]),
        headroom=rng.choice([1.0, 1.05, 1.5]),
        share_without_a_region=rng.choice([0.0, 0.0, 0.5]),
        chance_z=rng.choice([0.0, 0.0, 2.33]),
        region_correlation=rng.choice([0.0, 0.59]),
    )
